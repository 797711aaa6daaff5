"""Where compiled kernels are kept, so that only the first run compiles.

Knows: all that a compiled kernel depends on (its sources, the compiler, the CPU), which names the folder; and where
such a folder may be.
Does not know: any kernel.

Numba itself looks only at the file of the function it loads, not at the files of what is inlined into it. So
the folder's name holds a digest of all kernel sources, of the compiler's version, and of the CPU.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core import config as numba_config

config: Any = numba_config

GENERIC = os.environ.get("KIMISTREAM_GENERIC_KERNELS", "") not in ("", "0")
"""Set to compile what a CPU without a fast table lookup gets; the bits are the same."""


def host_features() -> frozenset[str]:
    """The features of this machine's CPU that LLVM can tell, by its names; it cannot tell those of Apple's CPUs."""
    try:
        return frozenset(name for name, has in llvm.get_host_cpu_features().items() if has)
    except RuntimeError:  # how older versions of llvmlite say that LLVM cannot tell
        return frozenset()


def cache_key() -> str:
    """A digest of all that compiled kernels depend on: their sources, the compiler, the CPU."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    if getattr(config, "CPU_FEATURES", None) is None:
        flags = ",".join(sorted(host_features()))
    else:
        flags = config.CPU_FEATURES
    cpu = getattr(config, "CPU_NAME", None) or llvm.get_host_cpu_name()
    digest.update(repr((numba.__version__, llvmlite.__version__, cpu, flags, GENERIC)).encode())
    return digest.hexdigest()[:20]


def is_private(path: Path) -> bool:
    """Make `path` if need be; True when it can be written and nobody else can (its files are executed)."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
            return False
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False


def choose() -> Path:
    """NUMBA_CACHE_DIR if set, else XDG_CACHE_HOME or ~/.cache, else a temporary folder of this user."""
    name = f"kernels-{cache_key()}"
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    places = [Path(chosen)] if chosen else []
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~")) / ".cache"
    if home.is_absolute():
        places.append(home / "kimistream")
    user = os.getuid() if hasattr(os, "getuid") else 0
    places.append(Path(tempfile.gettempdir()) / f"kimistream-{user}")
    for place in places:
        if is_private(place / name):
            return place / name
    return Path(tempfile.mkdtemp(prefix="kimistream-"))


def is_shared() -> bool:
    """Whether other processes of this user, on this CPU, find the same folder."""
    return FOLDER.name == f"kernels-{cache_key()}"


FOLDER = choose()
# Numba asks for this when a function is declared: every kernel's module imports `simd`, which imports this.
config.CACHE_DIR = str(FOLDER)
