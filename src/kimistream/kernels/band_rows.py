"""The dot products of the rows of packed bands with a few vectors, the weights decoded in registers.

Knows: how a quad of rows runs through its units, and past its escapes, in the order of the arithmetic contract.
Does not know: threads, files, what a row means.

A quad's rows lie interleaved by units, so it is read from front to back. Between escapes nothing is asked about them:
the list says which unit has the next one. That unit is decoded to floats in scratch for all rows of the quad, patched
there, and its products are added in their normal place; a last unit that is not full goes the same way.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .band_bytes import BAND_ROWS, ENDS, QUAD, ROW_BYTES, TABLE, UNIT_BYTES
from .band_decode import (
    FLOATS_BYTES,
    UNIT_GROUPS,
    Table,
    entry_at,
    half_unit,
    patch,
    row_of,
    unit_of,
)
from .band_sums import HEADER
from .rows import WIDE, ZERO, ask_for, closed, offset
from .runtime import argument, caller, kernel
from .simd import I64, VF, N, P, at, call, ld_i32, load, op, step, store

GROUP_BYTES = 128
"""Bytes of a group of 32 columns as float32."""
AHEAD = 8192
"""Bytes between what is computed and what is asked for, in each of the quads that are read side by side."""


def quad_dots(at_once: int, vectors: int, quads: int = 1) -> Any:
    """An intrinsic: y[t][r] = dot(row r, x[t]) for rows first .. first + at_once - 1 of a quad, or of two quads.

    Arguments: the quad, the band's table, the quad's escapes and their number, groups of 32 columns, scratch
    (DECODED_BYTES), `first`, rows that there are from `first` on; with two quads (then first = 0, at_once = 4) the
    second one, its escapes and their number; `vectors` pointers to split vectors, `vectors` to results.
    """

    @op(types.void, P, P, P, N, N, P, N, N, *[P, P, N] * (quads - 1), *[P] * (2 * vectors))
    def compute(b, quad, table, escapes, count, groups, floats, first, rows, *pointers):
        other, pointers = pointers[: 3 * (quads - 1)], pointers[3 * (quads - 1) :]
        xs, ys = pointers[:vectors], pointers[vectors:]
        all_rows = quads * at_once
        full = b.ashr(groups, I64(2))
        rest = b.and_(groups, I64(UNIT_GROUPS - 1))
        units = b.add(full, b.zext(b.icmp_signed(">", rest, I64(0)), I64))
        looked = Table(b, table)
        sums = [cgutils.alloca_once_value(b, ZERO) for _ in range(all_rows * vectors * 2)]
        for slot in sums:
            b.store(ZERO, slot)
        unit_slot = cgutils.alloca_once_value(b, I64(0))
        b.store(I64(0), unit_slot)
        starts = [offset(b, quad, b.mul(first, I64(ROW_BYTES))), *other[:1]]
        lists = [(escapes, count), *([(other[1], other[2])] if other else [])]
        entry_slots = [cgutils.alloca_once_value(b, I64(0)) for _ in lists]
        for slot in entry_slots:
            b.store(I64(0), slot)

        def add(weights, x_at):
            for t in range(vectors):
                halves = [load(b, xs[t], x_at, VF), load(b, xs[t], b.add(x_at, I64(64)), VF)]
                for r in range(all_rows):
                    for h in (0, 1):
                        slot = sums[(t * all_rows + r) * 2 + h]
                        b.store(call(b, "llvm.fma.v16f32", VF, weights[r][h], halves[h], b.load(slot)), slot)

        def next_unit():
            """Where the run of units without escapes ends: the next escape's unit, or the last full unit."""
            found = cgutils.alloca_once_value(b, I64(0))
            b.store(full, found)
            for slot, (listed, n) in zip(entry_slots, lists, strict=True):
                e = b.load(slot)
                with b.if_then(b.icmp_signed("<", e, n)):
                    u = unit_of(b, entry_at(b, listed, e))
                    least = b.load(found)
                    b.store(b.select(b.icmp_signed("<", u, least), u, least), found)
            return b.load(found)

        def fast(u):
            units_ = [offset(b, start, b.mul(u, I64(UNIT_BYTES))) for start in starts]
            x_at = b.mul(u, I64(UNIT_GROUPS * GROUP_BYTES))
            for half in (0, 1):
                rows_ = [
                    half_unit(b, looked, offset(b, unit, I64(r * ROW_BYTES)), half)
                    for unit in units_
                    for r in range(at_once)
                ]
                for k in (0, 1):
                    for unit in units_:
                        ask_for(b, offset(b, unit, I64(AHEAD + (2 * half + k) * ROW_BYTES)), ROW_BYTES)
                    at_group = b.add(x_at, I64((2 * half + k) * GROUP_BYTES))
                    add([groups_[k] for groups_ in rows_], at_group)

        def slow(u):
            units_ = [offset(b, start, b.mul(u, I64(UNIT_BYTES))) for start in starts]
            for unit in units_:
                ask_for(b, offset(b, unit, I64(AHEAD)), UNIT_BYTES)
            rows_ = [offset(b, unit, I64(r * ROW_BYTES)) for unit in units_ for r in range(at_once)]
            for r, half in ((r, half) for r in range(all_rows) for half in (0, 1)):
                decoded = half_unit(b, looked, rows_[r], half)
                for k, h in ((0, 0), (0, 1), (1, 0), (1, 1)):
                    where = r * FLOATS_BYTES + (2 * half + k) * GROUP_BYTES + 64 * h
                    store(b, decoded[k][h], floats, I64(where))
            for q, (listed, n) in enumerate(lists):
                with while_(b, lambda q=q, n=n, listed=listed: in_unit(u, q, n, listed)):
                    e = b.load(entry_slots[q])
                    entry = entry_at(b, listed, e)
                    r = b.sub(row_of(b, entry), first)
                    with b.if_then(b.icmp_unsigned("<", r, I64(at_once))):
                        row = b.mul(b.add(r, I64(q * at_once)), I64(FLOATS_BYTES))
                        patch(b, offset(b, floats, row), entry)
                    b.store(b.add(e, I64(1)), entry_slots[q])
            there = b.select(b.icmp_signed("<", u, full), I64(UNIT_GROUPS), rest)
            x_at = b.mul(u, I64(UNIT_GROUPS * GROUP_BYTES))
            with cgutils.for_range(b, there) as loop:
                g_at = b.mul(loop.index, I64(GROUP_BYTES))
                weights = [
                    [load(b, floats, b.add(g_at, I64(r * FLOATS_BYTES + 64 * h)), VF) for h in (0, 1)]
                    for r in range(all_rows)
                ]
                add(weights, b.add(x_at, g_at))

        def in_unit(u, q, n, listed):
            """Whether there is another escape in the list and it is in unit u."""
            e = b.load(entry_slots[q])
            here = cgutils.alloca_once_value(b, ir.Constant(ir.IntType(1), 0))
            b.store(ir.Constant(ir.IntType(1), 0), here)
            with b.if_then(b.icmp_signed("<", e, n)):
                b.store(b.icmp_signed("==", unit_of(b, entry_at(b, listed, e)), u), here)
            return b.load(here)

        with while_(b, lambda: b.icmp_signed("<", b.load(unit_slot), units)):
            stop = next_unit()
            with cgutils.for_range_slice(b, b.load(unit_slot), stop, I64(1), I64) as (u, _):
                fast(u)
            b.store(stop, unit_slot)
            with b.if_then(b.icmp_signed("<", stop, units), likely=False):
                slow(stop)
                b.store(b.add(stop, I64(1)), unit_slot)
        for t in range(vectors):
            for r in range(all_rows):
                at_slot = (t * all_rows + r) * 2
                value = closed(b, b.load(sums[at_slot]), b.load(sums[at_slot + 1]))
                with b.if_then(b.icmp_signed("<", I64(r), rows)):
                    store(b, value, ys[t], I64(4 * r))

    return compute


class while_:
    """IR: `with while_(b, condition): body`; `condition` builds the IR that gives an i1, before each turn."""

    def __init__(self, b: Any, condition: Any) -> None:
        self.b, self.condition = b, condition

    def __enter__(self) -> None:
        b = self.b
        self.head = b.append_basic_block("while.head")
        body, self.end = b.append_basic_block("while.body"), b.append_basic_block("while.end")
        b.branch(self.head)
        b.position_at_end(self.head)
        b.cbranch(self.condition(), body, self.end)
        b.position_at_end(body)

    def __exit__(self, *error: Any) -> None:
        self.b.branch(self.head)
        self.b.position_at_end(self.end)


AT_ONCE = QUAD if WIDE else 2
"""Rows of a quad at once; with one vector and 32 registers, of two quads side by side."""
MOST_VECTORS = 8 if WIDE else 1
"""Vectors up to which this, two or three at a time, is faster than unpacking the rows first."""
DECODED_BYTES = 2 * QUAD * FLOATS_BYTES
"""Scratch of one thread: a unit of two quads as float32."""


def near(vectors: int, quads: int = 1) -> Any:
    """`quad_dots` for as many vectors and quads as there are registers for."""
    if vectors * quads > 1 and not WIDE:  # never called: the same arguments as a stand-in, nothing to compile

        @op(types.void, P, P, P, N, N, P, N, N, *[P, P, N] * (quads - 1), *[P] * (2 * vectors))
        def nothing(b, *_):
            return None

        return nothing
    return quad_dots(AT_ONCE, vectors, quads)


one_quad_1, one_quad_2, one_quad_3, two_quads_1 = near(1), near(2), near(3), near(1, quads=2)

PACKED = "void(" + ", ".join(["int64"] * 10) + ")"


@kernel(PACKED)
def packed_direct(band, nbytes, rows, cols, x, x_row, vectors, y, y_row, floats):
    """y[t, r] = dot(row r, x[t]) for `rows` rows from the start of a band, `nbytes` apart each 16; few vectors.

    floats: scratch of DECODED_BYTES.
    """
    groups = (cols + 31) // 32
    quad_bytes = (cols + 127) // 128 * UNIT_BYTES
    side_by_side = WIDE and vectors == 1
    for r0 in range(0, rows, 2 * QUAD if side_by_side else QUAD):
        this = band + r0 // BAND_ROWS * nbytes
        q = r0 % BAND_ROWS // QUAD
        header = at(this)
        start = ld_i32(header, ENDS + q * 4 - 4) if q > 0 else 0
        count = ld_i32(header, ENDS + q * 4) - start
        quad = at(this + HEADER + q * quad_bytes)
        escapes = at(this + HEADER + BAND_ROWS // QUAD * quad_bytes + start * 4)
        table, scratch = at(this + TABLE), at(floats)
        if side_by_side:
            n, more = min(2 * QUAD, rows - r0), ld_i32(header, ENDS + q * 4 + 4) - start - count
            other, listed = step(quad, quad_bytes), step(escapes, count * 4)
            y0 = at(y + r0 * 4)
            two_quads_1(quad, table, escapes, count, groups, scratch, 0, n, other, listed, more, at(x), y0)
            continue
        n = min(QUAD, rows - r0)
        t = 0
        while t < vectors:
            left = vectors - t if WIDE else 1
            x0, y0 = at(x + t * x_row), at(y + t * y_row + r0 * 4)
            if left == 1:
                for j in range(0, n, AT_ONCE):
                    one_quad_1(quad, table, escapes, count, groups, scratch, j, n - j, x0, step(y0, j * 4))
                t += 1
                continue
            x1, y1 = at(x + (t + 1) * x_row), at(y + (t + 1) * y_row + r0 * 4)
            if left == 2 or left == 4:
                one_quad_2(quad, table, escapes, count, groups, scratch, 0, n, x0, x1, y0, y1)
                t += 2
            else:
                x2, y2 = at(x + (t + 2) * x_row), at(y + (t + 2) * y_row + r0 * 4)
                one_quad_3(quad, table, escapes, count, groups, scratch, 0, n, x0, x1, x2, y0, y1, y2)
                t += 3


invoke_10, invoke_11 = caller(10), caller(11)


@kernel("void(int64, int64, int64)")
def few_piece(arguments, item, worker):
    """A run of bands times a few vectors; `bands.matmul_bands` lists the arguments."""
    kernel, packed = argument(arguments, 0), argument(arguments, 1)
    band, nbytes, rows = argument(arguments, 2), argument(arguments, 3), argument(arguments, 4)
    cols, at_once = argument(arguments, 5), argument(arguments, 6)
    x, x_row, vectors = argument(arguments, 7), argument(arguments, 8), argument(arguments, 9)
    y, y_row = argument(arguments, 10), argument(arguments, 11)
    floats = argument(arguments, 12) + worker * argument(arguments, 13)
    band += item * at_once * nbytes
    r0 = item * at_once * BAND_ROWS
    n = min(at_once * BAND_ROWS, rows - r0)
    y += r0 * 4
    if packed:
        invoke_10(kernel, band, nbytes, n, cols, x, x_row, vectors, y, y_row, floats)
        return
    for r in range(0, n, BAND_ROWS):
        w, some = band + HEADER + r // BAND_ROWS * nbytes, min(BAND_ROWS, n - r)
        invoke_11(kernel, w, w, some, cols, x, x_row, 0, vectors, y + r * 4, y_row, 0)
