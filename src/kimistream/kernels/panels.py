"""The dot products of many stored rows with many vectors: weights unpacked once, used for all vectors.

Knows: how the work is cut so that what is used again stays near the core, and how the sums are kept in the
order of the arithmetic contract (see `rows`) all the same.
Does not know: threads, files, what a row means.

A panel is `PANEL_ROWS` rows by `PANEL_GROUPS` groups of 32 columns, unpacked to float32. A register block is the
rows of a panel by up to `BLOCK_VECTORS` vectors; its sums stay in registers along the panel and wait in scratch
between panels. Even and odd columns (and, on CPUs with shorter vectors, parts of the 16 lanes) are separate
runs over the panel, so the block can be large.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .decode import DECODERS, GROUP, Decoder, with_tail
from .formats import WeightFormat
from .rows import closed, offset
from .runtime import caller, kernel
from .simd import F32, FEAT, I64, LANES, N, P, at, call, join, load, op, st1, store

if "avx512f" in FEAT:
    WIDTH, PANEL_ROWS = 16, 6  # 24 sums, 6 weights and a vector: 31 of 32 registers
elif "avx2" in FEAT:
    WIDTH, PANEL_ROWS = 8, 3  # 12 sums, 3 weights and a vector: 16 of 16 registers
elif "neon" in FEAT:
    WIDTH, PANEL_ROWS = 4, 6
else:
    WIDTH, PANEL_ROWS = 4, 3
BLOCK_VECTORS = 4
PANEL_GROUPS = 16
VECTORS = 64
"""Vectors worked on together; with more, the weights are unpacked again for each 64."""
SUMS = 1536
"""Dot products under way at once in one thread: rows x vectors."""

GROUP_FLOATS = 4 * GROUP
PANEL_BYTES = PANEL_ROWS * PANEL_GROUPS * GROUP_FLOATS
SCRATCH_BYTES = PANEL_BYTES + (SUMS + PANEL_ROWS * VECTORS) * GROUP_FLOATS
"""Scratch of one thread."""


def rows_at_once(vectors: int) -> int:
    """Rows of one piece of work: a multiple of PANEL_ROWS, few enough for the sums of `vectors` vectors."""
    return max(1, SUMS // (min(vectors, VECTORS) * PANEL_ROWS)) * PANEL_ROWS


def unpacked(decoder: Decoder) -> Any:
    """An intrinsic: a run of groups of one row to float32: (w, s, full groups, bytes of a partial one, panel)."""

    @op(types.void, P, P, N, N, P)
    def unpack(b, w, s, groups, tail, panel):
        def put(pair, g):
            for h in (0, 1):
                store(b, pair[h], panel, b.add(b.mul(g, I64(GROUP_FLOATS)), I64(64 * h)))

        with cgutils.for_range(b, groups) as loop:
            w_at, s_at = (b.mul(loop.index, I64(n)) for n in (decoder.group_bytes, decoder.scale_bytes))
            put(decoder.group(b, offset(b, w, w_at), offset(b, s, s_at)), loop.index)
        if not decoder.scale_bytes:
            with b.if_then(b.icmp_signed(">", tail, I64(0)), likely=False):
                w_at = b.mul(groups, I64(decoder.group_bytes))
                put(with_tail(b, decoder, offset(b, w, w_at), s, tail), groups)

    return unpack


unpack_bf16 = unpacked(DECODERS[WeightFormat.BF16])
unpack_f32 = unpacked(DECODERS[WeightFormat.F32])
unpack_f16 = unpacked(DECODERS[WeightFormat.F16])
unpack_mxfp4 = unpacked(DECODERS[WeightFormat.MXFP4])

UNPACK = "void(int64, int64, int64, int64, int64, int64, int64)"
"""(weight address, scale address, rows, columns, first group, groups, panel)."""


@kernel(UNPACK)
def bf16_panel(weight, scale, rows, cols, g0, groups, panel):
    """Unpack bfloat16 rows."""
    full = min(groups, cols // 32 - g0)
    tail = cols % 32 * 2 if full < groups else 0
    for r in range(rows):
        w = at(weight + r * cols * 2 + g0 * 64)
        unpack_bf16(w, w, full, tail, at(panel + r * PANEL_GROUPS * 128))


@kernel(UNPACK)
def f16_panel(weight, scale, rows, cols, g0, groups, panel):
    """Unpack half precision rows."""
    full = min(groups, cols // 32 - g0)
    tail = cols % 32 * 2 if full < groups else 0
    for r in range(rows):
        w = at(weight + r * cols * 2 + g0 * 64)
        unpack_f16(w, w, full, tail, at(panel + r * PANEL_GROUPS * 128))


@kernel(UNPACK)
def f32_panel(weight, scale, rows, cols, g0, groups, panel):
    """Split float32 rows into even and odd columns."""
    full = min(groups, cols // 32 - g0)
    tail = cols % 32 * 4 if full < groups else 0
    for r in range(rows):
        w = at(weight + r * cols * 4 + g0 * 128)
        unpack_f32(w, w, full, tail, at(panel + r * PANEL_GROUPS * 128))


@kernel(UNPACK)
def mxfp4_panel(weight, scale, rows, cols, g0, groups, panel):
    """Unpack MXFP4 rows."""
    for r in range(rows):
        w, s = at(weight + r * cols // 2 + g0 * 16), at(scale + r * cols // 32 + g0)
        unpack_mxfp4(w, s, groups, 0, at(panel + r * PANEL_GROUPS * 128))


PANEL = {
    WeightFormat.BF16: bf16_panel,
    WeightFormat.F32: f32_panel,
    WeightFormat.F16: f16_panel,
    WeightFormat.MXFP4: mxfp4_panel,
}


def register_block(vectors: int) -> Any:
    """An intrinsic: the FMAs of a panel with `vectors` vectors, sums in registers.

    Arguments: panel, x (at the panel's first group), bytes between vectors, sums, groups, whether the sums start
    at zero. Sums are kept as [run][row][vector][WIDTH lanes].
    """
    lanes = ir.VectorType(F32, WIDTH)
    zero = ir.Constant(lanes, [0.0] * WIDTH)
    pairs = [(r, t) for r in range(PANEL_ROWS) for t in range(vectors)]

    @op(types.void, P, P, N, P, N, types.boolean)
    def add_panel(b, panel, x, x_row, sums, groups, first):
        slots = {pair: cgutils.alloca_once_value(b, zero) for pair in pairs}
        xs = [offset(b, x, b.mul(x_row, I64(t))) for t in range(vectors)]
        for run in range(2 * LANES // WIDTH):
            lane0 = I64(run * WIDTH * 4)
            at_sum = {(r, t): I64(((run * PANEL_ROWS + r) * vectors + t) * WIDTH * 4) for r, t in pairs}
            with b.if_else(first) as (yes, no):
                with yes:
                    for pair in pairs:
                        b.store(zero, slots[pair])
                with no:
                    for pair in pairs:
                        b.store(load(b, sums, at_sum[pair], lanes), slots[pair])
            with cgutils.for_range(b, groups) as loop:
                g = b.add(b.mul(loop.index, I64(GROUP_FLOATS)), lane0)
                weights = [
                    load(b, panel, b.add(g, I64(r * PANEL_GROUPS * GROUP_FLOATS)), lanes)
                    for r in range(PANEL_ROWS)
                ]
                for t in range(vectors):
                    v = load(b, xs[t], g, lanes)
                    for r in range(PANEL_ROWS):
                        slot = slots[r, t]
                        b.store(call(b, f"llvm.fma.v{WIDTH}f32", lanes, weights[r], v, b.load(slot)), slot)
            for pair in pairs:
                store(b, b.load(slots[pair]), sums, at_sum[pair])

    return add_panel


def register_block_end(vectors: int) -> Any:
    """An intrinsic: the dot product of row r and vector t out of a block's sums: (sums, r, t)."""
    runs = LANES // WIDTH

    @op(types.float32, P, N, N)
    def end(b, sums, r, t):
        lanes = ir.VectorType(F32, WIDTH)
        place = b.mul(b.add(b.mul(r, I64(vectors)), t), I64(WIDTH * 4))
        halves = []
        for h in (0, 1):
            parts = [
                load(b, sums, b.add(place, I64((h * runs + k) * PANEL_ROWS * vectors * WIDTH * 4)), lanes)
                for k in range(runs)
            ]
            while len(parts) > 1:
                parts = [join(b, *parts[k : k + 2]) for k in range(0, len(parts), 2)]
            halves.append(parts[0])
        return closed(b, *halves)

    return end


add_4, add_3, add_2, add_1 = (register_block(n) for n in (4, 3, 2, 1))
end_4, end_3, end_2, end_1 = (register_block_end(n) for n in (4, 3, 2, 1))


invoke_7 = caller(7)


@kernel("void(" + ", ".join(["int64"] * 13) + ")")
def many(unpack, weight, scale, row, scale_row, rows, cols, x, x_row, vectors, y, y_row, scratch):
    """y[t, r] = dot(row r, x[t]) for any number of rows and vectors; all strides in bytes.

    `unpack` is the address of the form's panel kernel; `scratch` has SCRATCH_BYTES, and `rows` is at most
    rows_at_once(vectors).
    """
    groups = (cols + 31) // 32
    sums = scratch + PANEL_BYTES
    for t0 in range(0, vectors, VECTORS):
        nt = min(VECTORS, vectors - t0)
        for g0 in range(0, groups, PANEL_GROUPS):
            ng = min(PANEL_GROUPS, groups - g0)
            for r0 in range(0, rows, PANEL_ROWS):
                nr = min(PANEL_ROWS, rows - r0)
                invoke_7(unpack, weight + r0 * row, scale + r0 * scale_row, nr, cols, g0, ng, scratch)
                t = 0
                while t < nt:
                    xs = at(x + (t0 + t) * x_row + g0 * 128)
                    block = at(sums + (r0 * nt + t * PANEL_ROWS) * 128)
                    left = nt - t
                    if left >= 4:
                        add_4(at(scratch), xs, x_row, block, ng, g0 == 0)
                    elif left == 3:
                        add_3(at(scratch), xs, x_row, block, ng, g0 == 0)
                    elif left == 2:
                        add_2(at(scratch), xs, x_row, block, ng, g0 == 0)
                    else:
                        add_1(at(scratch), xs, x_row, block, ng, g0 == 0)
                    t += 4
        for r0 in range(0, rows, PANEL_ROWS):
            nr = min(PANEL_ROWS, rows - r0)
            for t in range(0, nt, 4):
                block = at(sums + (r0 * nt + t * PANEL_ROWS) * 128)
                left = nt - t
                for k in range(min(4, left)):
                    for r in range(nr):
                        if left >= 4:
                            value = end_4(block, r, k)
                        elif left == 3:
                            value = end_3(block, r, k)
                        elif left == 2:
                            value = end_2(block, r, k)
                        else:
                            value = end_1(block, r, k)
                        st1(at(y), (t0 + t + k) * y_row + (r0 + r) * 4, value)
