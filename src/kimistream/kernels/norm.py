"""Root-mean-square norms of rows and of heads (ARCHITECTURE sections 3 and 5.7).

Knows: rms(x; w, eps) = w * (x / sqrt(mean(x^2) + eps)). Does not know: which norm of the model this is.

Order of the sum of squares: vector i (16 numbers) of each 64 numbers goes to accumulator i of four; the
vectors left at the end go to the first; then (0 + 1) + (2 + 3), then halves. It depends on the row alone.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import numpy.typing as npt
from numba import njit

from .exp import sigmoid_parts
from .jobs import JOB, address, job, real, split
from .runtime import argument, kernel
from .simd import fma, hsum, ldf, splat, stf
from .simd_more import INLINE, constant, ldf_part, stf_part

Floats = npt.NDArray[np.float32]


@njit(**INLINE)
def square_sum(p, off, n):
    """The sum of the squares of the n float32 at p + off."""
    a = b = c = d = constant(0.0)
    i, end = off, off + n * 4
    while i + 256 <= end:
        u, v, w, x = ldf(p, i), ldf(p, i + 64), ldf(p, i + 128), ldf(p, i + 192)
        a, b, c, d = fma(u, u, a), fma(v, v, b), fma(w, w, c), fma(x, x, d)
        i += 256
    while i + 64 <= end:
        u = ldf(p, i)
        a = fma(u, u, a)
        i += 64
    if i < end:
        u = ldf_part(p, i, (end - i) >> 2)
        a = fma(u, u, a)
    return hsum((a + b) + (c + d))


@njit(**INLINE)
def inverse_rms(p, off, n, eps):
    """1 / sqrt(mean of squares + eps)."""
    return np.float32(1.0) / sqrt(square_sum(p, off, n) / np.float32(n) + eps)


@kernel(JOB)
def _rms_norm(a, item, thread):
    x, w, out = address(a, 0), address(a, 1), address(a, 2)
    x_row, out_row, rows, n, each = (
        argument(a, 3),
        argument(a, 4),
        argument(a, 5),
        argument(a, 6),
        argument(a, 7),
    )
    eps = real(a, 8)
    for t in range(item * each, min(rows, (item + 1) * each)):
        r = splat(inverse_rms(x, t * x_row, n, eps))
        whole = n & ~15
        for i in range(0, whole * 4, 64):
            stf(out, t * out_row + i, ldf(w, i) * (ldf(x, t * x_row + i) * r))
        if whole < n:
            i, left = whole * 4, n - whole
            y = ldf_part(w, i, left) * (ldf_part(x, t * x_row + i, left) * r)
            stf_part(out, t * out_row + i, y, left)


@kernel(JOB)
def _gated_head_norm(a, item, thread):
    o, w, gate, out = address(a, 0), address(a, 1), address(a, 2), address(a, 3)
    heads, d, each, eps = argument(a, 4), argument(a, 5), argument(a, 6), real(a, 7)
    for h in range(item * each, min(heads, (item + 1) * each)):
        start = h * d * 4
        r = splat(inverse_rms(o, start, d, eps))
        whole = d & ~15
        for i in range(0, whole * 4, 64):
            n, q = sigmoid_parts(ldf(gate, start + i))
            stf(out, start + i, ldf(w, i) * (ldf(o, start + i) * r) * n / q)
        if whole < d:
            i, left = whole * 4, d - whole
            n, q = sigmoid_parts(ldf_part(gate, start + i, left))
            y = ldf_part(w, i, left) * (ldf_part(o, start + i, left) * r) * n / q
            stf_part(out, start + i, y, left)


def rms_norm(x: Floats, weight: Floats, eps: float, out: Floats) -> None:
    """out = rms of each row of x, times weight: x and out float32 [T, H], weight float32 [H].

    x and out may be slices of wider rows (`latent[:, :rank]`); out may be x.
    """
    rows, n = x.shape
    items, each = split(rows, n)
    job(_rms_norm, items, x, weight, out, x.strides[0], out.strides[0], rows, n, each, float(eps))


def gated_head_norm(o: Floats, weight: Floats, eps: float, gate: Floats, out: Floats) -> None:
    """out = rms of each head of o, times weight, times sigmoid(gate) (ARCHITECTURE section 5, step 7).

    o, gate and out: contiguous float32 [T, heads * d]; weight: float32 [d], shared by all heads. out may be
    o.
    """
    d = weight.size
    heads = o.size // d
    items, each = split(heads, d)
    job(_gated_head_norm, items, o, weight, gate, out, heads, d, each, float(eps))
