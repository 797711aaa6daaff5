"""What this machine is: processor and memory, as far as they bound an engine.

Knows: where Linux and macOS say so, and container limits.
Does not know: how fast any of it is (rates).
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from kimistream.budget import default_budget


@dataclass(frozen=True, slots=True)
class Processor:
    """`threads`: how many compute threads a run takes by default; `vectors`: what its kernels are made of."""

    model: str
    architecture: str
    logical: int
    threads: int
    vectors: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `budget`: what a run without --memory takes; `bound`: what sets that limit."""

    total: int
    budget: int
    bound: str


def processor() -> Processor:
    """Look at the processor."""
    from kimistream.kernels.cores import allowed_cpus, default_threads

    return Processor(_model_name(), platform.machine(), len(allowed_cpus()), default_threads(), _vectors())


def memory() -> Memory:
    """Look at the memory, container limits included."""
    available = default_budget()
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        total = available.nbytes
    return Memory(total, available.nbytes, available.source)


def _vectors() -> str:
    from kimistream.kernels.simd import features

    found = features()
    for name, flag in (("AVX-512", "avx512f"), ("AVX2", "avx2"), ("NEON", "neon")):
        if flag in found:
            return name
    return "none (slow)"


def _model_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "cpu model") and value.strip():
                return value.strip()
    except OSError:
        pass
    if sys.platform == "darwin":
        try:
            return subprocess.run(
                ["sysctl", "-n", "machdep.cpu.brand_string"],
                capture_output=True,
                text=True,
                timeout=5,
                check=True,
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            pass
    return platform.processor() or platform.machine() or "unknown"
