"""The dot products of a few stored rows with a few vectors, the weights decoded in registers.

Knows: the arithmetic contract of a dot product, and how a block of rows and vectors keeps it.
Does not know: threads, files, what a row means.

The contract (DESIGN section 5). The columns are taken in groups of 32, in ascending order. For each group, 16
lanes take one FMA for the even columns and 16 other lanes one for the odd columns. At the end the two are
added, and the 16 sums are halved 16 -> 8 -> 4 -> 2 -> 1. A last group that is not full is filled with zeros.
How many rows and vectors are worked on together changes nothing in that, so it never changes a bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from .decode import DECODERS, GROUP, RUN, Decoder, with_tail
from .formats import WeightFormat
from .runtime import OPTIONS, Kernel, kernel
from .simd import FEAT, I32, I64, LANES, VF, N, P, at, call, ld_i32, load, op, reduced, step, store

ZERO = ir.Constant(VF, [0.0] * LANES)
AHEAD = 16384
"""With neighbouring rows: bytes between what is computed and what is asked for, further than a page, so that no page's
start is met cold."""


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


def dots(decoder: Decoder, at_once: int, vectors: int, unroll: int = 1) -> Any:
    """An intrinsic: y[t][r] = dot(row r, x[t]) for any number of consecutive stored rows and `vectors` vectors.

    Arguments: w, s (the first row's bytes and scales), rows, cols, `vectors` pointers to split vectors, `vectors`
    pointers to results. `at_once` rows share the loads of the vectors, and hide the latency of an FMA.

    Without scales the rows at once lie as far apart as they can: each of `at_once` runs of rows is read from end to
    end, which is what the prefetchers of CPUs follow best. With scales they are neighbours, asked for beforehand.
    Each is the faster one for its kind of rows (docs/LEARNED.md).
    """
    apart = not decoder.scale_bytes

    @op(types.void, P, P, N, N, *[P] * (2 * vectors))
    def compute(b, w, s, rows, cols, *pointers):
        xs, ys = pointers[:vectors], pointers[vectors:]
        groups, rest = b.ashr(cols, I64(5)), b.and_(cols, I64(GROUP - 1))
        tail = b.ashr(b.mul(rest, I64(decoder.group_bytes)), I64(5))
        w_row = b.ashr(b.mul(cols, I64(decoder.group_bytes)), I64(5))
        s_row = b.mul(groups, I64(decoder.scale_bytes))
        slots = [cgutils.alloca_once_value(b, ZERO) for _ in range(at_once * vectors * 2)]

        def block(r0, stride, count):
            """Rows r0, r0 + stride, r0 + 2 stride ..."""
            numbers = [b.add(r0, b.mul(stride, I64(r))) for r in range(count)]
            ws = [offset(b, w, b.mul(w_row, number)) for number in numbers]
            ss = [offset(b, s, b.mul(s_row, number)) for number in numbers]

            def add(weights, g):
                x_at = b.mul(g, I64(4 * GROUP))
                for t in range(vectors):
                    halves = [load(b, xs[t], x_at, VF), load(b, xs[t], b.add(x_at, I64(64)), VF)]
                    for r in range(count):
                        for h in (0, 1):
                            slot = slots[(t * at_once + r) * 2 + h]
                            b.store(
                                call(b, "llvm.fma.v16f32", VF, weights[r][h], halves[h], b.load(slot)), slot
                            )

            def stored_at(g):
                """For each row, where group g is: (weights, scales)."""
                w_at, s_at = b.mul(g, I64(decoder.group_bytes)), b.mul(g, I64(decoder.scale_bytes))
                return [(offset(b, ws[r], w_at), offset(b, ss[r], s_at)) for r in range(count)]

            def add_stored(g):
                add([decoder.group(b, *where) for where in stored_at(g)], g)

            def add_run(g):
                """`unroll` groups from g on."""
                if decoder.run and unroll == RUN:
                    runs = [decoder.run(b, *where) for where in stored_at(g)]
                    for i in range(RUN):
                        add([group(i) for group in runs], b.add(g, I64(i)))
                else:
                    for i in range(unroll):
                        add_stored(b.add(g, I64(i)))

            for slot in slots:
                b.store(ZERO, slot)
            whole = b.and_(groups, I64(-unroll)) if count > 1 else I64(0)
            if count > 1:
                with cgutils.for_range_slice(b, I64(0), whole, I64(unroll), I64) as (g, _):
                    if not apart:
                        # What is asked for runs linearly ahead of the block.
                        span = count * decoder.group_bytes
                        ask_for(b, offset(b, ws[0], b.add(b.mul(g, I64(span)), I64(AHEAD))), span * unroll)
                    add_run(g)
            if count == 1 or unroll > 1:
                with cgutils.for_range_slice(b, whole, groups, I64(1), I64) as (g, _):
                    add_stored(g)
            if not decoder.scale_bytes:
                with b.if_then(b.icmp_signed(">", tail, I64(0)), likely=False):
                    w_at = b.mul(groups, I64(decoder.group_bytes))
                    add(
                        [with_tail(b, decoder, offset(b, ws[r], w_at), ss[r], tail) for r in range(count)],
                        groups,
                    )
            for t in range(vectors):
                for r in range(count):
                    at_slot = (t * at_once + r) * 2
                    value = closed(b, b.load(slots[at_slot]), b.load(slots[at_slot + 1]))
                    store(b, value, ys[t], b.mul(numbers[r], I64(4)))

        blocks = b.sdiv(rows, I64(at_once))
        stride, first = (blocks, I64(1)) if apart else (I64(1), I64(at_once))
        with cgutils.for_range(b, blocks, intp=I64) as loop:
            block(b.mul(loop.index, first), stride, at_once)
        with cgutils.for_range_slice(b, b.mul(blocks, I64(at_once)), rows, I64(1), I64) as (r0, _):
            block(r0, I64(1), 1)

    return compute


WIDE = "avx512f" in FEAT
ROWS = 4 if WIDE else 2
"""Rows at once with one or two vectors, as many as their sums have registers."""
ROWS_APART = 6 if WIDE else 3 if "avx2" in FEAT else 2
"""The same with one vector where the rows lie apart: more runs are read at a time."""


def near(fmt: WeightFormat, vectors: int) -> Any:
    """`dots` of a form for 1 .. 3 vectors, with as many rows at once as there are registers for."""
    if vectors > 1 and not WIDE:  # never called: the same arguments as a stand-in, and nothing to compile

        @op(types.void, P, P, N, N, *[P] * (2 * vectors))
        def nothing(b, *_):
            return None

        return nothing
    decoder = DECODERS[fmt]
    at_once = min(ROWS, 3) if vectors > 2 else ROWS if vectors > 1 or decoder.scale_bytes else ROWS_APART
    unroll = 1 if fmt != WeightFormat.MXFP4 else RUN if decoder.run else 2
    return dots(decoder, at_once, vectors, unroll)


bf16_1, bf16_2, bf16_3 = (near(WeightFormat.BF16, n) for n in (1, 2, 3))
mxfp4_1, mxfp4_2, mxfp4_3 = (near(WeightFormat.MXFP4, n) for n in (1, 2, 3))
f32_1, f16_1 = near(WeightFormat.F32, 1), near(WeightFormat.F16, 1)

DIRECT = "void(" + ", ".join(["int64"] * 11) + ")"
"""(weight, scale, rows, cols, x, bytes between vectors, x_index, vectors, y, bytes between results, y_index).

`x_index` and `y_index`: 0, or addresses of int32 numbers of the vectors to take and of the results to write.
"""

STRIP = 12
"""Rows that are taken through all vectors before the next ones: they stay near the core meanwhile."""


@njit(forceinline=True, **OPTIONS)
def place(base, row, index, t):
    """Where vector t is: number index[t], if `index` is not 0."""
    return at(base + row * (ld_i32(at(index), t * 4) if index != 0 else t))


@kernel(DIRECT)
def bf16_direct(weight, scale, rows, cols, x, x_row, x_index, vectors, y, y_row, y_index):
    """y[t, r] = dot(bfloat16 row r, x[t]) for 1 .. 3 vectors."""
    w, x0, y0 = at(weight), place(x, x_row, x_index, 0), place(y, y_row, y_index, 0)
    if vectors == 1:
        bf16_1(w, w, rows, cols, x0, y0)
        return
    x1, y1 = place(x, x_row, x_index, 1), place(y, y_row, y_index, 1)
    if vectors == 2:
        bf16_2(w, w, rows, cols, x0, x1, y0, y1)
        return
    x2, y2 = place(x, x_row, x_index, 2), place(y, y_row, y_index, 2)
    bf16_3(w, w, rows, cols, x0, x1, x2, y0, y1, y2)


@kernel(DIRECT)
def mxfp4_direct(weight, scale, rows, cols, x, x_row, x_index, vectors, y, y_row, y_index):
    """y[t, r] = dot(MXFP4 row r, x[t]) for any number of vectors, up to three at once; cols is a multiple of 32."""
    if vectors == 1:
        x0, y0 = place(x, x_row, x_index, 0), place(y, y_row, y_index, 0)
        mxfp4_1(at(weight), at(scale), rows, cols, x0, y0)
        return
    groups = cols // 32
    for r0 in range(0, rows, STRIP):
        w, s, n = at(weight + r0 * groups * 16), at(scale + r0 * groups), min(STRIP, rows - r0)
        t = 0
        while t < vectors:
            left = vectors - t
            x0, y0 = place(x, x_row, x_index, t), step(place(y, y_row, y_index, t), r0 * 4)
            t += 1
            if left > 1:
                x1, y1 = place(x, x_row, x_index, t), step(place(y, y_row, y_index, t), r0 * 4)
                t += 1
                if left == 2 or left == 4:
                    mxfp4_2(w, s, n, cols, x0, x1, y0, y1)
                else:
                    x2, y2 = place(x, x_row, x_index, t), step(place(y, y_row, y_index, t), r0 * 4)
                    t += 1
                    mxfp4_3(w, s, n, cols, x0, x1, x2, y0, y1, y2)
            else:
                mxfp4_1(w, s, n, cols, x0, y0)


@kernel(DIRECT)
def f32_direct(weight, scale, rows, cols, x, x_row, x_index, vectors, y, y_row, y_index):
    """y[0, r] = dot(float32 row r, x[0])."""
    f32_1(at(weight), at(weight), rows, cols, place(x, x_row, x_index, 0), place(y, y_row, y_index, 0))


@kernel(DIRECT)
def f16_direct(weight, scale, rows, cols, x, x_row, x_index, vectors, y, y_row, y_index):
    """y[0, r] = dot(half precision row r, x[0])."""
    f16_1(at(weight), at(weight), rows, cols, place(x, x_row, x_index, 0), place(y, y_row, y_index, 0))


@dataclass(frozen=True)
class Direct:
    """The kernel of a form that decodes in registers, and the most vectors it is the faster way for."""

    kernel: Kernel
    vectors: int


FORMS = {
    WeightFormat.BF16: Direct(bf16_direct, 3 if WIDE else 1),
    WeightFormat.F32: Direct(f32_direct, 1),
    WeightFormat.F16: Direct(f16_direct, 1),
    WeightFormat.MXFP4: Direct(mxfp4_direct, 8 if WIDE else 1),
}
