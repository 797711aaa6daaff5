"""Memory: sizes as people write them, what this machine or container really has free, what we use.

Knows: size suffixes, /proc, cgroup v1 and v2 limits including those of ancestors.
Does not know: what the memory is for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from kimistream.errors import UsageError

_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)", re.IGNORECASE | re.ASCII)

# A cgroup v1 "no limit" is the largest multiple of the page size in 63 bits; anything near it is no limit.
_NO_LIMIT = 1 << 60

RESERVE_BYTES = 256 << 20
RESERVE_SHARE = 16
"""What the default budget leaves to others: 256 MiB and a sixteenth of what is free."""


def parse_size(text: str, option: str = "--memory") -> int:
    """Bytes of "8GB" (10^9), "512MiB" (2^20), "1.5gb". A number needs a unit; raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise UsageError(
            f"{option} {text!r} is not a size",
            f"Give a number with a unit, for example `{option} 8GB` or `{option} 512MiB`.",
        )
    whole, _, fraction = match[1].partition(".")
    if len(whole) + len(fraction) > 30:  # a memory of 10^30 bytes is a slip of the hand
        raise UsageError(
            f"{option} {text[:20]!r}... has {len(whole) + len(fraction)} digits; understood: up to 30",
            f"Give a size such as `{option} 8GB`.",
        )
    nbytes = int(whole) * unit + int(fraction or "0") * unit // int(10 ** len(fraction))
    if nbytes <= 0:
        raise UsageError(f"{option} {text!r} is no memory at all", f"Give more, for example `{option} 8GB`.")
    return nbytes


def format_size(nbytes: float) -> str:
    """`nbytes` in decimal units with three figures, as `parse_size` reads them: "8.24 GB"."""
    sign, size = ("-", -nbytes) if nbytes < 0 else ("", nbytes)
    if size < 1000:
        return f"{sign}{size:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        figures = 2 if size < 9.995 else 1 if size < 99.95 else 0
        if size < 999.5 or unit == "TB":
            return f"{sign}{size:.{figures}f} {unit}"
    raise RuntimeError("unreachable")


@dataclass(frozen=True, slots=True)
class Available:
    """What a process may use in all (what it holds already included), and what sets that bound."""

    nbytes: int
    source: str


def default_budget(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Available:
    """What this process may use in all: the least of free memory and every container limit, less a reserve.

    Counts the whole process, so what it already holds is included. `proc` and `cgroups` are replaceable
    for tests.
    """
    own = current_rss(proc)
    bounds = [_free_memory(proc, own), *(_cgroup_bounds(proc, cgroups, own))]
    least = min(bounds, key=lambda bound: bound.nbytes)
    reserve = min(RESERVE_BYTES + least.nbytes // RESERVE_SHARE, least.nbytes // 2)
    return Available(max(0, least.nbytes - reserve), least.source)


def _free_memory(proc: Path, own: int) -> Available:
    fields = _fields(proc / "meminfo")
    if "MemAvailable" in fields:
        return Available(fields["MemAvailable"] * 1024 + own, "free memory of this machine")
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Available(total * 3 // 4, "three quarters of this machine's memory")


def _cgroup_bounds(proc: Path, cgroups: Path, own: int) -> list[Available]:
    """One bound per limit of the memory cgroups this process is in, their ancestors included."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    bounds: list[Available] = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            for root in (cgroups, cgroups / "unified"):
                for group in _with_ancestors(root, path):
                    bounds += _v2_bounds(group, own)
        elif "memory" in controllers.split(","):
            for group in _with_ancestors(cgroups / "memory", path):
                bounds += _v1_bounds(group, own)
    return bounds


def _with_ancestors(root: Path, path: str) -> list[Path]:
    """`root/path` and all above it down to the root. A container may see its own group as the root, with a
    path that does not exist here: then what exists of it counts."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    groups = [root.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]
    return [group for group in groups if group.is_dir()]


def _v2_bounds(group: Path, own: int) -> list[Available]:
    used = _number(group / "memory.current")
    bounds = []
    for name in ("memory.max", "memory.high"):
        limit = _number(group / name)
        if limit is not None:
            bounds.append(_bound(limit, used, _fields(group / "memory.stat"), own, f"{name} of {group}"))
    return bounds


def _v1_bounds(group: Path, own: int) -> list[Available]:
    limits = [_number(group / "memory.limit_in_bytes")]
    stat = _fields(group / "memory.stat")
    limits.append(stat.get("hierarchical_memory_limit"))  # covers ancestors that are not mounted here
    used = _number(group / "memory.usage_in_bytes")
    return [
        _bound(limit, used, stat, own, f"memory limit of {group}")
        for limit in limits
        if limit is not None and limit < _NO_LIMIT
    ]


def _bound(limit: int, used: int | None, stat: dict[str, int], own: int, source: str) -> Available:
    """What is left under a limit: file pages count as used there but give way."""
    files = stat.get("total_inactive_file", stat.get("inactive_file", 0))
    files += stat.get("total_active_file", stat.get("active_file", 0))
    others = max(0, (used or 0) - files - own)
    return Available(max(0, limit - others), source)


def current_rss(proc: Path = Path("/proc")) -> int:
    """Resident bytes of this process now."""
    rss = _fields(proc / "self" / "status").get("VmRSS")
    return rss * 1024 if rss is not None else _max_rss()


def peak_rss(proc: Path = Path("/proc")) -> int:
    """The largest resident size this process has had (since `reset_peak_rss`, where that works)."""
    peak = _fields(proc / "self" / "status").get("VmHWM")
    return peak * 1024 if peak is not None else _max_rss()


def release_freed() -> None:
    """Have the C library return freed memory to the system, where it can (glibc); it keeps tens of MB otherwise."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak_rss(proc: Path = Path("/proc")) -> bool:
    """Start measuring the peak anew. Returns False where the system does not allow it."""
    try:
        (proc / "self" / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _max_rss() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _number(path: Path) -> int | None:
    """The number a file holds; None when it is absent or says "max"."""
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):
        return None


def _fields(path: Path) -> dict[str, int]:
    """`name[:] number ...` lines as a dict."""
    found: dict[str, int] = {}
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isdigit():
            found[words[0]] = int(words[1])
    return found
