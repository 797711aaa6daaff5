"""The dot products of a few stored rows with a few vectors, the weights decoded in registers.

Knows: the arithmetic contract of a dot product, and how a block of rows and vectors keeps it.
Does not know: threads, files, what a row means.

The contract (DESIGN section 5). The columns are taken in groups of 32, in ascending order. For each group, 16
lanes take one FMA for the even columns and 16 other lanes one for the odd columns. At the end the two are
added, and the 16 sums are halved 16 -> 8 -> 4 -> 2 -> 1. A last group that is not full is filled with zeros.
How many rows and vectors are worked on together changes nothing in that, so it never changes a bit.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .decode import DECODERS, GROUP, Decoder, with_tail
from .formats import WeightFormat
from .runtime import kernel
from .simd import I32, I64, LANES, VF, N, P, at, call, load, op, reduced, step, store

ZERO = ir.Constant(VF, [0.0] * LANES)
AHEAD = 16384
"""Bytes between what is computed and what is asked for: further than a page, so that no page's start is met cold."""


def closed(b: Any, even: Any, odd: Any) -> Any:
    """IR: the end of a dot product: even and odd lanes added, then halved."""
    return reduced(b, b.fadd(even, odd), b.fadd)


def offset(b: Any, p: Any, off: Any) -> Any:
    """IR: the pointer `off` bytes further."""
    return cgutils.pointer_add(b, p, off)


def ask_for(b: Any, p: Any, nbytes: int) -> None:
    """IR: prefetch `nbytes` bytes from `p` on into the second-level cache; harmless at any address."""
    kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, I32, I32, I32])
    fetch = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
    for k in range(0, nbytes, 64):
        b.call(fetch, [offset(b, p, I64(k)), I32(0), I32(2), I32(1)])


def dots(decoder: Decoder, rows: int, vectors: int, unroll: int = 1) -> Any:
    """An intrinsic: y[t, r] = dot(row r, x[t]) for `rows` consecutive stored rows and `vectors` vectors.

    Arguments: w, s (the first row's bytes and scales), bytes of a row, scale bytes of a row, full groups, bytes
    of a last partial group, x (split), bytes between vectors, y, bytes between the results of two vectors.
    """

    @op(types.void, P, P, N, N, N, N, P, N, P, N)
    def compute(b, w, s, w_row, s_row, groups, tail, x, x_row, y, y_row):
        slots = [cgutils.alloca_once_value(b, ZERO) for _ in range(rows * vectors * 2)]
        ws = [offset(b, w, b.mul(w_row, I64(r))) for r in range(rows)]
        ss = [offset(b, s, b.mul(s_row, I64(r))) for r in range(rows)]
        xs = [offset(b, x, b.mul(x_row, I64(t))) for t in range(vectors)]

        def add(weights, g):
            x_at = b.mul(g, I64(4 * GROUP))
            for t in range(vectors):
                halves = [load(b, xs[t], x_at, VF), load(b, xs[t], b.add(x_at, I64(64)), VF)]
                for r in range(rows):
                    for h in (0, 1):
                        slot = slots[(t * rows + r) * 2 + h]
                        b.store(call(b, "llvm.fma.v16f32", VF, weights[r][h], halves[h], b.load(slot)), slot)

        def add_stored(g):
            w_at, s_at = b.mul(g, I64(decoder.group_bytes)), b.mul(g, I64(decoder.scale_bytes))
            add([decoder.group(b, offset(b, ws[r], w_at), offset(b, ss[r], s_at)) for r in range(rows)], g)

        for slot in slots:
            b.store(ZERO, slot)
        whole = b.and_(groups, I64(-unroll))
        with cgutils.for_range_slice(b, I64(0), whole, I64(unroll), I64) as (g, _):
            # The rows lie one behind the other: what is asked for runs linearly ahead of the whole block.
            span = rows * decoder.group_bytes
            ask_for(b, offset(b, w, b.add(b.mul(g, I64(span)), I64(AHEAD))), span * unroll)
            for u in range(unroll):
                add_stored(b.add(g, I64(u)))
        if unroll > 1:
            with cgutils.for_range_slice(b, whole, groups, I64(1), I64) as (g, _):
                add_stored(g)
        if not decoder.scale_bytes:
            with b.if_then(b.icmp_signed(">", tail, I64(0)), likely=False):
                w_at = b.mul(groups, I64(decoder.group_bytes))
                add([with_tail(b, decoder, offset(b, ws[r], w_at), ss[r], tail) for r in range(rows)], groups)
        for t in range(vectors):
            for r in range(rows):
                at_slot = (t * rows + r) * 2
                value = closed(b, b.load(slots[at_slot]), b.load(slots[at_slot + 1]))
                store(b, value, y, b.add(b.mul(y_row, I64(t)), I64(4 * r)))

    return compute


bf16_4, bf16_1 = dots(DECODERS[WeightFormat.BF16], 4, 1), dots(DECODERS[WeightFormat.BF16], 1, 1)
f32_4, f32_1 = dots(DECODERS[WeightFormat.F32], 4, 1), dots(DECODERS[WeightFormat.F32], 1, 1)
f16_4, f16_1 = dots(DECODERS[WeightFormat.F16], 4, 1), dots(DECODERS[WeightFormat.F16], 1, 1)
mxfp4_4, mxfp4_1 = dots(DECODERS[WeightFormat.MXFP4], 4, 1, 2), dots(DECODERS[WeightFormat.MXFP4], 1, 1)

ONE_VECTOR = "void(int64, int64, int64, int64, int64, int64)"
"""(weight address of the first row, its scale address, rows, columns, address of x, address of y)."""


@kernel(ONE_VECTOR)
def bf16_one(weight, scale, rows, cols, x, y):
    """y[r] = dot(bfloat16 row r, x)."""
    row, w, groups, tail = cols * 2, at(weight), cols // 32, cols % 32 * 2
    r = 0
    while r + 4 <= rows:
        bf16_4(step(w, r * row), w, row, 0, groups, tail, at(x), 0, at(y + r * 4), 0)
        r += 4
    while r < rows:
        bf16_1(step(w, r * row), w, row, 0, groups, tail, at(x), 0, at(y + r * 4), 0)
        r += 1


@kernel(ONE_VECTOR)
def f16_one(weight, scale, rows, cols, x, y):
    """y[r] = dot(half precision row r, x)."""
    row, w, groups, tail = cols * 2, at(weight), cols // 32, cols % 32 * 2
    r = 0
    while r + 4 <= rows:
        f16_4(step(w, r * row), w, row, 0, groups, tail, at(x), 0, at(y + r * 4), 0)
        r += 4
    while r < rows:
        f16_1(step(w, r * row), w, row, 0, groups, tail, at(x), 0, at(y + r * 4), 0)
        r += 1


@kernel(ONE_VECTOR)
def f32_one(weight, scale, rows, cols, x, y):
    """y[r] = dot(float32 row r, x)."""
    row, w, groups, tail = cols * 4, at(weight), cols // 32, cols % 32 * 4
    r = 0
    while r + 4 <= rows:
        f32_4(step(w, r * row), w, row, 0, groups, tail, at(x), 0, at(y + r * 4), 0)
        r += 4
    while r < rows:
        f32_1(step(w, r * row), w, row, 0, groups, tail, at(x), 0, at(y + r * 4), 0)
        r += 1


@kernel(ONE_VECTOR)
def mxfp4_one(weight, scale, rows, cols, x, y):
    """y[r] = dot(MXFP4 row r, x); cols is a multiple of 32."""
    groups = cols // 32
    row, w, s = groups * 16, at(weight), at(scale)
    r = 0
    while r + 4 <= rows:
        mxfp4_4(step(w, r * row), step(s, r * groups), row, groups, groups, 0, at(x), 0, at(y + r * 4), 0)
        r += 4
    while r < rows:
        mxfp4_1(step(w, r * row), step(s, r * groups), row, groups, groups, 0, at(x), 0, at(y + r * 4), 0)
        r += 1


ONE = {
    WeightFormat.BF16: bf16_one,
    WeightFormat.F32: f32_one,
    WeightFormat.F16: f16_one,
    WeightFormat.MXFP4: mxfp4_one,
}
