"""The short depthwise convolution over time, with SiLU, for one run of rows of one sequence.

Knows: y[t] = silu(sum_i weight[i] * x[t - (W - 1) + i]), the last tap on the newest input (ARCHITECTURE
section 5, step 2), and that the inputs before the run are in the tail. Does not know: which of q, k, v it is.

The taps are summed oldest first, the first as a product and each other one by an FMA; every channel and row
by itself, so that a sequence may be cut into runs anywhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit

from . import runtime
from .exp import sigmoid_parts
from .jobs import JOB, address, job
from .runtime import argument, kernel
from .simd import F32, I32, F, N, P, fma, ld1, ldf, load, op, st1, step, stf
from .simd_more import INLINE, ldf_part, stf_part

Floats = npt.NDArray[np.float32]

CHANNELS = 256
"""Channels of one item: few enough that their weights, turned around, stay in the nearest cache."""


def _every_fourth(first):
    @op(F, P, N)
    def every_fourth(b, p, off):
        v = load(b, p, off, ir.VectorType(F32, 64), 4)
        lanes = [first + 4 * i for i in range(16)]
        return b.shuffle_vector(v, v, ir.Constant(ir.VectorType(I32, 16), lanes))

    return every_fourth


_tap0, _tap1, _tap2, _tap3 = (_every_fourth(i) for i in range(4))


@njit(**INLINE)
def _turn(weight, first, count, taps, turned):
    """turned[i, c] = weight[first + c, i]."""
    p = step(weight, first * taps * 4)
    whole = count & ~15 if taps == 4 else 0
    for c in range(0, whole, 16):
        stf(turned, c * 4, _tap0(p, c * 16))
        stf(turned, (CHANNELS + c) * 4, _tap1(p, c * 16))
        stf(turned, (2 * CHANNELS + c) * 4, _tap2(p, c * 16))
        stf(turned, (3 * CHANNELS + c) * 4, _tap3(p, c * 16))
    for c in range(whole, count):
        for i in range(taps):
            st1(turned, (i * CHANNELS + c) * 4, ld1(p, (c * taps + i) * 4))


@njit(**INLINE)
def _silu(v):
    n, d = sigmoid_parts(v)
    return v * n / d


@njit(**INLINE)
def _source(x, tail, t, i, taps, row):
    """Where the input of tap i of row t is: in the run, or in the tail before it."""
    s = t - (taps - 1) + i
    return step(x, s * row) if s >= 0 else step(tail, (s + taps - 1) * row)


@kernel(JOB)
def _short_conv(a, item, thread):
    """Item: CHANNELS channels, all rows."""
    x, weight, tail, out, scratch = address(a, 0), address(a, 1), address(a, 2), address(a, 3), address(a, 4)
    rows, channels, taps = argument(a, 5), argument(a, 6), argument(a, 7)
    first = item * CHANNELS
    count = min(CHANNELS, channels - first)
    turned = step(scratch, thread * taps * CHANNELS * 4)
    _turn(weight, first, count, taps, turned)
    x, tail, out = step(x, first * 4), step(tail, first * 4), step(out, first * 4)
    row = channels * 4
    whole = (count & ~15) * 4 if taps == 4 else 0
    for t in range(rows):
        p0, p1 = _source(x, tail, t, 0, 4, row), _source(x, tail, t, 1, 4, row)
        p2, p3 = _source(x, tail, t, 2, 4, row), step(x, t * row)
        for c in range(0, whole, 64):
            y = ldf(turned, c) * ldf(p0, c)
            y = fma(ldf(turned, CHANNELS * 4 + c), ldf(p1, c), y)
            y = fma(ldf(turned, 2 * CHANNELS * 4 + c), ldf(p2, c), y)
            y = fma(ldf(turned, 3 * CHANNELS * 4 + c), ldf(p3, c), y)
            stf(out, t * row + c, _silu(y))
        for c in range(whole, count * 4, 64):
            n = min(16, count - c // 4)
            y = ldf(turned, c) * ldf_part(_source(x, tail, t, 0, taps, row), c, n)
            for i in range(1, taps):
                v = ldf_part(_source(x, tail, t, i, taps, row), c, n)
                y = fma(ldf(turned, i * CHANNELS * 4 + c), v, y)
            stf_part(out, t * row + c, _silu(y), n)


def short_conv(x: Floats, weight: Floats, tail: Floats, out: Floats) -> None:
    """out = silu(convolution of tail then x); tail becomes the last W - 1 inputs.

    x and out: contiguous float32 [T, C], one run of rows of one sequence, out not x; weight: float32 [C, W];
    tail: float32 [W - 1, C], oldest first, zero before the first token.
    """
    rows, channels = x.shape
    taps = weight.shape[1]
    scratch = np.empty((runtime.threads(), taps, CHANNELS), np.float32)
    job(_short_conv, -(-channels // CHANNELS), x, weight, tail, out, scratch, rows, channels, taps)
    kept = taps - 1 - rows
    if kept > 0:
        tail[:kept] = tail[rows:].copy()
        tail[kept:] = x
    else:
        tail[:] = x[rows - (taps - 1) :]
