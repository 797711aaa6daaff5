"""More sixteen-lane operations: vectors in part, half precision, constants, the options of every kernel here.

Knows: how these become LLVM code that means the same on every CPU.
Does not know: what is computed with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from .simd import F32, I32, I64, VF, VH, VI, F, I, N, P, as_f, as_i, const, load, op, splat, store

KERNEL: dict[str, Any] = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}
"""Options of a compiled kernel. Never `fastmath`: the order of every sum is fixed."""
INLINE: dict[str, Any] = {**KERNEL, "forceinline": True}


@op(types.int64, P, N)
def ld_i32(b, p, off):
    """One int32, as int64."""
    return b.sext(load(b, p, off, I32, 4), I64)


@op(types.void, P, N, types.int64)
def st_i32(b, p, off, v):
    """Store the lower half of an int64."""
    store(b, b.trunc(v, I32), p, off)


@op(F, I)
def half_to_f(b, h):
    """IEEE half precision bits, in the low half of each int32, to float32, exactly (NaN stays NaN)."""
    magnitude = b.and_(h, const(0x7FFF))
    # the half's fields moved to float32's places are off by 2^112; the product is exact, subnormals included
    scaled = b.fmul(b.bitcast(b.shl(magnitude, const(13)), VF), ir.Constant(VF, [2.0**112] * 16))
    bits = b.bitcast(scaled, VI)
    special = b.icmp_unsigned(">=", magnitude, const(0x7C00))
    bits = b.select(special, b.or_(b.shl(magnitude, const(13)), const(0x7F800000)), bits)
    return b.bitcast(b.or_(bits, b.shl(b.and_(h, const(0x8000)), const(16))), VF)


@op(types.float32, F)
def first(b, v):
    return b.extract_element(v, I32(0))


def _loop_load(b, p, off, n, ty):
    size = I64(2 if ty is VH else 4)
    slot = cgutils.alloca_once(b, ir.ArrayType(ty.element, 16))
    b.store(ir.Constant(slot.type.pointee, [0] * 16), slot)
    with cgutils.for_range(b, n) as loop:
        value = load(b, p, b.add(off, b.mul(loop.index, size)), ty.element)
        b.store(value, b.gep(slot, [I32(0), loop.index]))
    return b.load(b.bitcast(slot, ty.as_pointer()), align=4)


@op(F, P, N, N)
def ldf_part(b, p, off, n):
    """The first n (< 16) float32 at p + off, then zeros; reads nothing beyond them."""
    return _loop_load(b, p, off, n, VF)


@op(I, P, N, N)
def zx16_part(b, p, off, n):
    """The first n (< 16) uint16 at p + off as int32, then zeros; reads nothing beyond them."""
    return b.zext(_loop_load(b, p, off, n, VH), VI)


@op(types.void, P, N, F, N)
def stf_part(b, p, off, v, n):
    """Store the first n (< 16) lanes; writes nothing beyond them."""
    slot = cgutils.alloca_once(b, ir.ArrayType(F32, 16))
    b.store(v, b.bitcast(slot, VF.as_pointer()), align=4)
    with cgutils.for_range(b, n) as loop:
        at = b.add(off, b.mul(loop.index, I64(4)))
        store(b, b.load(b.gep(slot, [I32(0), loop.index])), p, at)


@njit(**INLINE)
def with_sign(x, sign):
    """|x| with the sign of `sign`; x must not be negative."""
    return as_f(as_i(x) | (as_i(sign) & 0x80000000))


@njit(**INLINE)
def constant(value):
    """A Python or float64 number in every lane, rounded to float32."""
    return splat(np.float32(value))
