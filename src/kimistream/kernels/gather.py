"""Stored numbers to float32, exactly, from any address: embedding rows and the small vectors.

Knows: the bits of bfloat16, float16 and float32. Does not know: what the numbers are for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from .formats import WeightFormat
from .jobs import JOB, SMALL, address, job
from .runtime import argument, kernel
from .simd import as_f, at, ldf, stf, zx16
from .simd_more import INLINE, half_to_f, ldf_part, stf_part, zx16_part

BF16, F32 = int(WeightFormat.BF16), int(WeightFormat.F32)
WIDTH = {WeightFormat.BF16: 2, WeightFormat.F32: 4, WeightFormat.F16: 2}
"""Bytes of one number."""


@njit(**INLINE)
def widen_row(fmt, p, off, out, out_off, n):
    """n numbers of form `fmt` at p + off to float32 at out + out_off; reads and writes nothing else."""
    whole = n & ~15
    if fmt == F32:
        for i in range(0, whole, 16):
            stf(out, out_off + i * 4, ldf(p, off + i * 4))
        if whole < n:
            stf_part(out, out_off + whole * 4, ldf_part(p, off + whole * 4, n - whole), n - whole)
    elif fmt == BF16:
        for i in range(0, whole, 16):
            stf(out, out_off + i * 4, as_f(zx16(p, off + i * 2) << 16))
        if whole < n:
            v = as_f(zx16_part(p, off + whole * 2, n - whole) << 16)
            stf_part(out, out_off + whole * 4, v, n - whole)
    else:
        for i in range(0, whole, 16):
            stf(out, out_off + i * 4, half_to_f(zx16(p, off + i * 2)))
        if whole < n:
            v = half_to_f(zx16_part(p, off + whole * 2, n - whole))
            stf_part(out, out_off + whole * 4, v, n - whole)


@kernel(JOB)
def _widen(a, item, thread):
    fmt, n, each = argument(a, 2), argument(a, 3), argument(a, 4)
    start = item * each
    count = min(n, start + each) - start
    width = 4 if fmt == F32 else 2
    widen_row(fmt, at(argument(a, 0)), start * width, address(a, 1), start * 4, count)


def widen(fmt: int, addr: int, n: int, out: npt.NDArray[np.float32]) -> None:
    """The n numbers of form `fmt` (BF16, F32 or F16) at the raw address `addr` to out, float32 [n].

    Exact: subnormals, signed zeros, infinities; a NaN stays a NaN. Any alignment; reads only those bytes.
    """
    each = max(SMALL * 4, -(-n // 64 // 16) * 16)
    job(_widen, -(-n // each), addr, out, int(fmt), n, each)
