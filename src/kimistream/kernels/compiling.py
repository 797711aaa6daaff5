"""All kernels compiled by processes of their own: what the compiler takes never counts in this one.

Knows: how the declared kernels are shared out among Python processes, and how those tell how far they are.
Does not know: any kernel; whether they are compiled already (`runtime.is_cached`).

The compiler leaves almost 200 MB behind in the process that it ran in, which would then be missing from every memory
budget of that first run. The processes leave their work in the folder of compiled kernels (`folder.FOLDER`), from
where the caller loads it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import kimistream

from . import runtime
from .folder import FOLDER, is_shared

SLICES = 4
"""A process compiles one slice of the kernels, then starts over with empty memory for its next one."""
PROCESS_BYTES = 260_000_000
"""What a process takes at most (resident, its libraries included), measured on x86-64."""


def compile_apart(processes: int, progress: Callable[[int, int], None] | None = None) -> None:
    """Have up to `processes` Python processes compile every declared kernel, calling `progress(done, total)`.

    Whatever they leave undone (a process that cannot be started, or is killed) `runtime.compile_all` does itself.
    """
    if not (is_shared() and sys.executable):
        return
    root = str(Path(kimistream.__file__).parents[1])
    before = os.environ.get("PYTHONPATH", "")
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(FOLDER.parent),
        "PYTHONPATH": os.pathsep.join([root, before]) if before else root,
    }
    total, processes = len(runtime.declared()), min(processes, SLICES)
    told, tell = os.pipe()
    started: list[subprocess.Popen[bytes]] = []
    try:
        with contextlib.suppress(OSError):
            for k in range(processes):
                started.append(
                    subprocess.Popen(
                        _command(k, processes),
                        stdin=subprocess.DEVNULL,
                        stdout=tell,
                        stderr=subprocess.DEVNULL,
                        env=environment,
                    )
                )
        os.close(tell)
        tell = -1
        done = 0
        while told_of := os.read(told, 64):  # a byte for each kernel; nothing once they have all ended
            done += len(told_of)
            if progress is not None:
                progress(min(done, total), total)
    finally:
        for process in started:
            process.kill()
            process.wait()
        for end in (told, tell):
            if end >= 0:
                os.close(end)


def _command(slice_: int, step: int) -> list[str]:
    return [sys.executable, "-P", "-m", __spec__.name, str(slice_), str(step)]


def main() -> None:
    """Compile slice k of the kernels, then slices k + n, k + 2 n ..., writing a byte for each kernel: `... k n`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupted caller says so itself
    from . import all  # noqa: F401  (declares every kernel)

    slice_, step = (int(word) for word in sys.argv[1:])
    for each in runtime.declared()[slice_::SLICES]:
        each.compile()
        os.write(1, b".")  # fails, and ends this process, when the caller is gone
    if slice_ + step < SLICES:
        os.execv(sys.executable, _command(slice_ + step, step))


if __name__ == "__main__":
    main()
