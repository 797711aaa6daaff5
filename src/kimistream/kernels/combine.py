"""The weighted sum of a row's expert outputs, always in the order of the experts' ids.

Knows: which slot of which row an output belongs to.
Does not know: in what order the outputs were computed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .jobs import JOB, address, job
from .runtime import argument, kernel
from .simd import fma, ld1, ldf, splat, stf
from .simd_more import constant, ldf_part, stf_part

Floats = npt.NDArray[np.float32]

_COLUMNS = 1024


@kernel(JOB)
def _combine(a, item, thread):
    outputs, weights, out = address(a, 0), address(a, 1), address(a, 2)
    k, width, pieces = argument(a, 3), argument(a, 4), argument(a, 5)
    t, piece = item // pieces, item % pieces
    first, last = piece * _COLUMNS, min(width, (piece + 1) * _COLUMNS)
    whole = first + ((last - first) & ~15)
    for i in range(first * 4, whole * 4, 64):
        y = constant(0.0)
        for j in range(k):
            y = fma(splat(ld1(weights, (t * k + j) * 4)), ldf(outputs, (t * k + j) * width * 4 + i), y)
        stf(out, t * width * 4 + i, y)
    if whole < last:
        left, i = last - whole, whole * 4
        y = constant(0.0)
        for j in range(k):
            x = ldf_part(outputs, (t * k + j) * width * 4 + i, left)
            y = fma(splat(ld1(weights, (t * k + j) * 4)), x, y)
        stf_part(out, t * width * 4 + i, y, left)


def combine(expert_out: Floats, weights: Floats, out: Floats) -> None:
    """out[t] = sum over slots j, ascending, of weights[t, j] * expert_out[t * k + j].

    expert_out: float32 `[T * k, L]`; weights: float32 `[T, k]`; out: float32 `[T, L]`
    (ARCHITECTURE section 7, step 3). One FMA per term, from zero.
    """
    rows, k = weights.shape
    width = out.shape[1]
    pieces = -(-width // _COLUMNS)
    job(_combine, rows * pieces, expert_out, weights, out, k, width, pieces)
