"""The same bits from every kernel with one thread or several, and on a CPU without AVX-512."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import kernel_digest
import pytest

FEATURES_OF_2013 = "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+sse4.2,+popcnt,+lzcnt,+movbe"
X86 = platform.machine() in ("x86_64", "AMD64")
LESSER_CPU = (
    {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": FEATURES_OF_2013}
    if X86
    else {"NUMBA_CPU_NAME": "generic"}
)
"""256-bit vectors and FMA, nothing later; elsewhere the plainest CPU of the machine's kind."""


@pytest.fixture(scope="module")
def here() -> dict[str, str]:
    return kernel_digest.digests()


def elsewhere(**environment: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, str(Path(kernel_digest.__file__))],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_one_thread_and_two_give_the_same_bits(here, with_threads):
    for threads in (1, 2):
        with_threads(threads)
        assert kernel_digest.digests() == here


def test_a_cpu_without_avx512_gives_the_same_bits(here):
    assert elsewhere(**LESSER_CPU) == here
