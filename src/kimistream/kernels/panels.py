"""The dot products of many stored rows with many vectors: weights unpacked once, used for all vectors.

Knows: how the work is cut so that what is used again stays near the core, and how the sums are kept in the
order of the arithmetic contract (see `rows`) all the same.
Does not know: threads, files, what a row means.

A panel is `PANEL_ROWS` rows by `PANEL_GROUPS` groups of 32 columns, unpacked to float32. A register block is the
rows of a panel by up to `BLOCK` vectors; its sums stay in registers along the panel and wait in scratch between
panels. Even and odd columns (and, on CPUs with shorter vectors, parts of the 16 lanes) are separate runs over the
panel, so that the block can be large.

`BAND` rows are carried through all columns together. Meanwhile the same columns of the next band are asked for,
one line in each step of the innermost loop: asked for in a burst, they would hold up everything else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from .decode import DECODERS, GROUP, Decoder, with_tail
from .formats import WeightFormat
from .rows import ask_for, closed, offset, place
from .runtime import OPTIONS, argument, caller, kernel
from .simd import F32, FEAT, I64, LANES, N, P, at, call, join, load, op, splat, st1, step, stf, store

if "avx512f" in FEAT:
    WIDTH, PANEL_ROWS = 16, 6  # 24 sums, 6 weights and a vector: 31 of 32 registers
elif "avx2" in FEAT:
    WIDTH, PANEL_ROWS = 8, 3  # 12 sums, 3 weights and a vector: 16 of 16 registers
elif "neon" in FEAT:
    WIDTH, PANEL_ROWS = 4, 6
else:
    WIDTH, PANEL_ROWS = 4, 3
BLOCK = 4
RUNS = 2 * LANES // WIDTH
PANEL_GROUPS = 16
BAND = 24
VECTORS = 64
"""Vectors carried through a band together; with more, the weights are unpacked again for each 64."""

GROUP_FLOATS = 4 * GROUP
PANEL_BYTES = PANEL_ROWS * PANEL_GROUPS * GROUP_FLOATS
SCRATCH_BYTES = PANEL_BYTES + BAND * VECTORS * GROUP_FLOATS
"""Scratch of one thread."""


def unpacked(decoder: Decoder) -> Any:
    """An intrinsic: a run of groups of one row to float32.

    Arguments: w, s, full groups, bytes of a partial one, panel.
    """

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


def register_block(vectors: int, asks: int) -> Any:
    """An intrinsic: the FMAs of a panel with `vectors` vectors, sums in registers.

    Arguments: panel, BLOCK vectors (each at the panel's first group), sums, groups; then what to ask for meanwhile:
    address, bytes of a group, bytes of a row; `asks` rows in each run. Sums are kept as [run][row][vector][WIDTH].
    """
    lanes = ir.VectorType(F32, WIDTH)
    pairs = [(r, t) for r in range(PANEL_ROWS) for t in range(vectors)]
    at_sum = {(r, t): I64((r * vectors + t) * WIDTH * 4) for r, t in pairs}

    @op(types.void, P, *[P] * BLOCK, P, N, P, N, N)
    def add_panel(b, panel, x0, x1, x2, x3, sums, groups, ahead, ahead_group, ahead_row):
        slots = {pair: cgutils.alloca_once(b, lanes) for pair in pairs}
        with cgutils.for_range(b, I64(RUNS)) as each:
            lane0 = b.mul(each.index, I64(WIDTH * 4))
            own = offset(b, sums, b.mul(each.index, I64(len(pairs) * WIDTH * 4)))
            weight = offset(b, panel, lane0)
            xs = [offset(b, x, lane0) for x in (x0, x1, x2, x3)[:vectors]]
            first = b.mul(each.index, b.mul(ahead_row, I64(asks)))
            asked = [offset(b, ahead, b.add(first, b.mul(ahead_row, I64(k)))) for k in range(asks)]
            for pair in pairs:
                b.store(load(b, own, at_sum[pair], lanes), slots[pair])
            with cgutils.for_range(b, groups) as loop:
                for p in asked:
                    ask_for(b, offset(b, p, b.mul(loop.index, ahead_group)), 64)
                g = b.mul(loop.index, I64(GROUP_FLOATS))
                weights = [
                    load(b, weight, b.add(g, I64(r * PANEL_GROUPS * GROUP_FLOATS)), lanes)
                    for r in range(PANEL_ROWS)
                ]
                for t in range(vectors):
                    v = load(b, xs[t], g, lanes)
                    for r in range(PANEL_ROWS):
                        slot = slots[r, t]
                        b.store(call(b, f"llvm.fma.v{WIDTH}f32", lanes, weights[r], v, b.load(slot)), slot)
            for pair in pairs:
                store(b, b.load(slots[pair]), own, at_sum[pair])
            # No code, but a wall for the compiler: it would load the next run's sums before this run has ended,
            # and have too few registers for both.
            b.fence("acq_rel", targetscope="singlethread")

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


ASKS = -(-PANEL_ROWS // RUNS)
add_4_of_many = register_block(4, 1)
add_4, add_3, add_2, add_1 = (register_block(n, ASKS) for n in (4, 3, 2, 1))
end_4, end_3, end_2, end_1 = (register_block_end(n) for n in (4, 3, 2, 1))

invoke_7 = caller(7)


@njit(forceinline=True, **OPTIONS)
def asked_of_bands(described, number, panel, g0):
    """Where to ask while panel `panel` is computed, for the BAND rows from `number` on: (address, step).

    Rows of a packed band lie interleaved by quads, so a third of a quad's part of the panel is asked for in each step.
    """
    start, nbytes, line = argument(described, 0), argument(described, 1), argument(described, 2)
    if argument(described, 5) == 0:
        number += panel * PANEL_ROWS
        return start + number // 16 * nbytes + 64 + number % 16 * line + g0 * argument(described, 3), line
    quad = number // 4 + panel // 3 * RUNS * ASKS
    if panel // 3 * RUNS * ASKS >= BAND // 4:
        return start, 0
    return start + quad // 4 * nbytes + 64 + quad % 4 * line + (g0 // 4) * 768 + panel % 3 * 1024, line


@kernel("void(" + ", ".join(["int64"] * 15) + ")")
def many(
    unpack, weight, scale, row, scale_row, rows, cols, x, x_row, x_index, vectors, y, y_row, y_index, scratch
):
    """y[t, r] = dot(row r, x[t]) for any number of rows and vectors; all strides in bytes.

    `unpack` is the address of the form's panel kernel. `x_index` and `y_index`: 0, or addresses of int32 numbers
    of the vectors to take and the results to write. `scratch` has SCRATCH_BYTES. If `row` is 0, `weight` describes a
    run of bands (`band_panels`), in which `scale` is the number of the first row, and `scale_row` is 1.
    """
    groups = (cols + 31) // 32
    group_bytes = row * 32 // cols if row > 0 else argument(weight, 3)
    sums = scratch + PANEL_BYTES
    panel = at(scratch)
    zero = splat(np.float32(0.0))
    for t0 in range(0, vectors, VECTORS):
        nt = min(VECTORS, vectors - t0)
        spread = nt >= BLOCK * ASKS
        for band in range(0, rows, BAND):
            end = min(rows, band + BAND)
            for i in range(BAND * nt * 2):
                stf(at(sums), i * 64, zero)
            for g0 in range(0, groups, PANEL_GROUPS):
                ng = min(PANEL_GROUPS, groups - g0)
                for r0 in range(band, end, PANEL_ROWS):
                    nr = min(PANEL_ROWS, end - r0)
                    invoke_7(unpack, weight + r0 * row, scale + r0 * scale_row, nr, cols, g0, ng, scratch)
                    ahead, ahead_row = weight + (r0 + BAND) * row + g0 * group_bytes, row
                    if row == 0:
                        ahead, ahead_row = asked_of_bands(
                            weight, scale + band + BAND, (r0 - band) // PANEL_ROWS, g0
                        )
                    block = sums + (r0 - band) * nt * 128
                    for t in range(t0, t0 + nt, BLOCK):
                        left = t0 + nt - t
                        x0 = step(place(x, x_row, x_index, t), g0 * 128)
                        x1 = step(place(x, x_row, x_index, t + 1), g0 * 128) if left > 1 else x0
                        x2 = step(place(x, x_row, x_index, t + 2), g0 * 128) if left > 2 else x0
                        x3 = step(place(x, x_row, x_index, t + 3), g0 * 128) if left > 3 else x0
                        p, a = at(block), at(ahead)
                        if left >= 4 and spread:
                            add_4_of_many(panel, x0, x1, x2, x3, p, ng, a, group_bytes, ahead_row)
                        elif left >= 4:
                            add_4(panel, x0, x1, x2, x3, p, ng, a, group_bytes, ahead_row)
                        elif left == 3:
                            add_3(panel, x0, x1, x2, x3, p, ng, a, group_bytes, ahead_row)
                        elif left == 2:
                            add_2(panel, x0, x1, x2, x3, p, ng, a, group_bytes, ahead_row)
                        else:
                            add_1(panel, x0, x1, x2, x3, p, ng, a, group_bytes, ahead_row)
                        block += BLOCK * PANEL_ROWS * 128
                        ahead += RUNS * ahead_row
                        if not spread or t - t0 >= BLOCK * (
                            ASKS - 1
                        ):  # all rows of the next panel are asked for
                            ahead, ahead_row = scratch, 0
            for r0 in range(band, end, PANEL_ROWS):
                nr = min(PANEL_ROWS, end - r0)
                block = sums + (r0 - band) * nt * 128
                for t in range(0, nt, BLOCK):
                    left = nt - t
                    for k in range(min(BLOCK, left)):
                        out = step(place(y, y_row, y_index, t0 + t + k), r0 * 4)
                        for r in range(nr):
                            if left >= 4:
                                value = end_4(at(block), r, k)
                            elif left == 3:
                                value = end_3(at(block), r, k)
                            elif left == 2:
                                value = end_2(at(block), r, k)
                            else:
                                value = end_1(at(block), r, k)
                            st1(out, r * 4, value)
                    block += BLOCK * PANEL_ROWS * 128
