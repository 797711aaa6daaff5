"""The residual stream: the attention-residual mix (ARCHITECTURE section 4) and the plain sum.

Knows: score_j = sum(v_j / rms(v_j) * norm * proj), p = softmax(score), result = sum_j p_j v_j.
Does not know: when a snapshot is pushed.

Orders: both sums of a score go over pairs of vectors (32 numbers), each vector of a pair in its own
accumulator, what is left at the end in the first; the two are added and halved. Softmax and mixture go over
j ascending, the running sum s last. All of it depends on the row alone.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import numpy.typing as npt
from numba import njit

from .exp import exp1
from .jobs import JOB, address, job, real, split
from .runtime import argument, kernel
from .simd import fma, hsum, ld1, ldf, splat, st1, stf
from .simd_more import INLINE, constant, ldf_part, stf_part

Floats = npt.NDArray[np.float32]


@njit(**INLINE)
def _score(v, off, norm, proj, n, eps):
    s0 = s1 = d0 = d1 = constant(0.0)
    i, end = 0, n * 4
    while i + 128 <= end:
        x, y = ldf(v, off + i), ldf(v, off + i + 64)
        s0, s1 = fma(x, x, s0), fma(y, y, s1)
        d0 = fma(x, ldf(norm, i) * ldf(proj, i), d0)
        d1 = fma(y, ldf(norm, i + 64) * ldf(proj, i + 64), d1)
        i += 128
    while i < end:
        left = min(16, (end - i) >> 2)
        x = ldf_part(v, off + i, left)
        s0 = fma(x, x, s0)
        d0 = fma(x, ldf_part(norm, i, left) * ldf_part(proj, i, left), d0)
        i += 64
    return hsum(d0 + d1) / sqrt(hsum(s0 + s1) / np.float32(n) + eps)


@kernel(JOB)
def _mix(a, item, thread):
    stack, s, norm, proj = address(a, 0), address(a, 1), address(a, 2), address(a, 3)
    out, shares = address(a, 4), address(a, 5)
    entry, count, rows, n, each = (
        argument(a, 6),
        argument(a, 7),
        argument(a, 8),
        argument(a, 9),
        argument(a, 10),
    )
    eps = real(a, 11)
    for t in range(item * each, min(rows, (item + 1) * each)):
        row, p = t * n * 4, t * (count + 1) * 4
        top = _score(s, row, norm, proj, n, eps)
        st1(shares, p + count * 4, top)
        for j in range(count):
            score = _score(stack, j * entry + row, norm, proj, n, eps)
            st1(shares, p + j * 4, score)
            top = max(top, score)
        total = np.float32(0.0)
        for j in range(count + 1):
            e = exp1(ld1(shares, p + j * 4) - top)
            st1(shares, p + j * 4, e)
            total += e
        for j in range(count + 1):
            st1(shares, p + j * 4, ld1(shares, p + j * 4) / total)
        whole = (n & ~15) * 4
        for i in range(0, whole, 64):
            y = constant(0.0)
            for j in range(count):
                y = fma(splat(ld1(shares, p + j * 4)), ldf(stack, j * entry + row + i), y)
            stf(out, row + i, fma(splat(ld1(shares, p + count * 4)), ldf(s, row + i), y))
        if whole < n * 4:
            left = n & 15
            y = constant(0.0)
            for j in range(count):
                y = fma(splat(ld1(shares, p + j * 4)), ldf_part(stack, j * entry + row + whole, left), y)
            y = fma(splat(ld1(shares, p + count * 4)), ldf_part(s, row + whole, left), y)
            stf_part(out, row + whole, y, left)


def residual_mix(
    stack: Floats, count: int, s: Floats, norm: Floats, proj: Floats, eps: float, out: Floats
) -> None:
    """out = mix(s, the first `count` entries of stack; proj, norm).

    stack: float32 [S, T, H] with S >= count (count may be 0); s and out: contiguous float32 [T, H], out may
    be s; norm and proj: float32 [H].
    """
    rows, n = s.shape
    items, each = split(rows, n * (count + 1))
    shares = np.empty((rows, count + 1), np.float32)
    entry = stack.strides[0] if count else 0
    job(_mix, items, stack, s, norm, proj, out, shares, entry, count, rows, n, each, float(eps))


def add(s: Floats, a: Floats) -> None:
    """s += a, element by element: float32 arrays of one shape."""
    np.add(s, a, out=s)
