"""How fast this machine reads memory: the limit that every kernel is measured against.

Knows: a loop that loads and adds.
Does not know: what is made of the figure.
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from .jobs import JOB, address, job
from .runtime import argument, kernel
from .simd import hsum, ldf, st1
from .simd_more import constant

_PIECE = 1 << 20


@kernel(JOB)
def _sum_piece(a, item, thread):
    p, out = address(a, 0), address(a, 1)
    start = item * argument(a, 2)
    s0 = constant(0.0)
    s1 = constant(0.0)
    s2 = constant(0.0)
    s3 = constant(0.0)
    for i in range(start, start + argument(a, 2), 256):
        s0 = s0 + ldf(p, i)
        s1 = s1 + ldf(p, i + 64)
        s2 = s2 + ldf(p, i + 128)
        s3 = s3 + ldf(p, i + 192)
    st1(out, item * 4, hsum((s0 + s1) + (s2 + s3)))


def memory_read_rate(memory: npt.NDArray[np.uint8], seconds: float = 0.5) -> float:
    """Bytes per second at which all compute threads together read `memory` (uint8, larger than the caches).

    The median of as many sweeps as fit into `seconds`, three at least.
    """
    pieces = memory.nbytes // _PIECE
    sums = np.empty(pieces, np.float32)
    rates: list[float] = []
    until = time.perf_counter() + seconds
    while len(rates) < 3 or time.perf_counter() < until:
        started = time.perf_counter()
        job(_sum_piece, pieces, memory, sums, _PIECE)
        rates.append(pieces * _PIECE / (time.perf_counter() - started))
    return float(np.median(rates))
