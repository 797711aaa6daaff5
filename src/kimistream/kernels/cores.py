"""How many threads should compute here: fast physical cores, affinity, and container limits.

Knows: where Linux and macOS say so.
Does not know: what runs on them.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path


def _numbers(text: str) -> set[int]:
    """The set that "0-3,8,10-11" names."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.strip():
            found.update(range(int(first), int(last or first) + 1))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def allowed_cpus() -> set[int]:
    """The logical CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def fast_physical_cores(cpus: set[int], root: Path = Path("/")) -> int:
    """Physical cores among `cpus`, leaving out efficiency cores where the system tells them apart (Linux)."""
    system = root / "sys/devices"
    performance = _numbers(_read(system / "cpu_core/cpus"))  # hybrid x86
    if performance & cpus:
        cpus = performance & cpus
    capacity = {c: int(_read(system / f"system/cpu/cpu{c}/cpu_capacity") or 0) for c in cpus}  # big.LITTLE
    best = max(capacity.values(), default=0)
    if best:
        cpus = {c for c in cpus if 2 * capacity[c] > best}
    cores = set()
    for c in cpus:
        topology = system / f"system/cpu/cpu{c}/topology"
        siblings = _read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list")
        cores.add(min(_numbers(siblings), default=c))
    return max(1, len(cores))


def cgroup_cpu_limit(root: Path = Path("/")) -> float:
    """The smallest CPU quota of this process's cgroup and its ancestors, in CPUs; infinite without one."""
    limit = math.inf
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = root / "sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            base = root / "sys/fs/cgroup" / controllers
            if not base.exists():
                base = root / "sys/fs/cgroup/cpu"
        else:
            continue
        parts = [p for p in path.split("/") if p]
        for depth in range(len(parts), -1, -1):
            group = base.joinpath(*parts[:depth])
            quota, period = "", ""
            if controllers == "":
                quota, _, period = _read(group / "cpu.max").partition(" ")
            else:
                quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
            if quota.isdigit() and period.isdigit() and int(period) > 0:
                limit = min(limit, int(quota) / int(period))
    return limit


def default_threads() -> int:
    """One thread for each fast physical core this process may use, at most its CPU quota, at least one."""
    if sys.platform == "darwin":
        for name in ("hw.perflevel0.physicalcpu", "hw.physicalcpu"):
            try:
                said = subprocess.run(
                    ["sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=True
                ).stdout
                return max(1, int(said))
            except (OSError, ValueError, subprocess.SubprocessError):
                continue
        return max(1, os.cpu_count() or 1)
    count = fast_physical_cores(allowed_cpus())
    return max(1, min(count, math.floor(cgroup_cpu_limit()) if cgroup_cpu_limit() < count else count))
