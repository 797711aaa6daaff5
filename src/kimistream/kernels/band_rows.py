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
from .rows import AHEAD, WIDE, ZERO, ask_for, closed, offset
from .runtime import argument, caller, kernel
from .simd import I64, VF, N, P, at, call, ld_i32, load, op, step, store

GROUP_BYTES = 128
"""Bytes of a group of 32 columns as float32."""


def quad_dots(at_once: int, vectors: int) -> Any:
    """An intrinsic: y[t][r] = dot(row r, x[t]) for rows first .. first + at_once - 1 of a quad.

    Arguments: the quad, the table, the quad's escapes and their number, groups of 32 columns, scratch for a decoded
    unit, `first`, rows that there are from `first` on, `vectors` pointers to split vectors, `vectors` to results.
    """

    @op(types.void, P, P, P, N, N, P, N, N, *[P] * (2 * vectors))
    def compute(b, quad, table, escapes, count, groups, floats, first, rows, *pointers):
        xs, ys = pointers[:vectors], pointers[vectors:]
        full = b.ashr(groups, I64(2))
        rest = b.and_(groups, I64(UNIT_GROUPS - 1))
        units = b.add(full, b.zext(b.icmp_signed(">", rest, I64(0)), I64))
        looked = Table(b, table)
        sums = [cgutils.alloca_once_value(b, ZERO) for _ in range(at_once * vectors * 2)]
        for slot in sums:
            b.store(ZERO, slot)
        quad = offset(b, quad, b.mul(first, I64(ROW_BYTES)))
        unit_slot = cgutils.alloca_once_value(b, I64(0))
        entry_slot = cgutils.alloca_once_value(b, I64(0))
        b.store(I64(0), unit_slot)
        b.store(I64(0), entry_slot)

        def add(weights, x_at):
            for t in range(vectors):
                halves = [load(b, xs[t], x_at, VF), load(b, xs[t], b.add(x_at, I64(64)), VF)]
                for r in range(at_once):
                    for h in (0, 1):
                        slot = sums[(t * at_once + r) * 2 + h]
                        b.store(call(b, "llvm.fma.v16f32", VF, weights[r][h], halves[h], b.load(slot)), slot)

        def next_unit():
            """Where the run of units without escapes ends: the next escape's unit, or the last full unit."""
            e = b.load(entry_slot)
            found = cgutils.alloca_once_value(b, I64(0))
            b.store(full, found)
            with b.if_then(b.icmp_signed("<", e, count)):
                u = unit_of(b, entry_at(b, escapes, e))
                b.store(b.select(b.icmp_signed("<", u, full), u, full), found)
            return b.load(found)

        def fast(u):
            unit = offset(b, quad, b.mul(u, I64(UNIT_BYTES)))
            x_at = b.mul(u, I64(UNIT_GROUPS * GROUP_BYTES))
            for half in (0, 1):
                rows_ = [
                    half_unit(b, looked, offset(b, unit, I64(r * ROW_BYTES)), half) for r in range(at_once)
                ]
                for k in (0, 1):
                    ask_for(b, offset(b, unit, I64(AHEAD + (2 * half + k) * ROW_BYTES)), ROW_BYTES)
                    at_group = b.add(x_at, I64((2 * half + k) * GROUP_BYTES))
                    add([groups_[k] for groups_ in rows_], at_group)

        def slow(u):
            unit = offset(b, quad, b.mul(u, I64(UNIT_BYTES)))
            ask_for(b, offset(b, unit, I64(AHEAD)), UNIT_BYTES)
            for r in range(at_once):
                for half in (0, 1):
                    decoded = half_unit(b, looked, offset(b, unit, I64(r * ROW_BYTES)), half)
                    for k in (0, 1):
                        for h in (0, 1):
                            where = r * FLOATS_BYTES + (2 * half + k) * GROUP_BYTES + 64 * h
                            store(b, decoded[k][h], floats, I64(where))
            with while_(b, lambda: in_unit(u)):
                e = b.load(entry_slot)
                entry = entry_at(b, escapes, e)
                r = b.sub(row_of(b, entry), first)
                with b.if_then(b.icmp_unsigned("<", r, I64(at_once))):
                    patch(b, offset(b, floats, b.mul(r, I64(FLOATS_BYTES))), entry)
                b.store(b.add(e, I64(1)), entry_slot)
            there = b.select(b.icmp_signed("<", u, full), I64(UNIT_GROUPS), rest)
            x_at = b.mul(u, I64(UNIT_GROUPS * GROUP_BYTES))
            with cgutils.for_range(b, there) as loop:
                g_at = b.mul(loop.index, I64(GROUP_BYTES))
                weights = [
                    [load(b, floats, b.add(g_at, I64(r * FLOATS_BYTES + 64 * h)), VF) for h in (0, 1)]
                    for r in range(at_once)
                ]
                add(weights, b.add(x_at, g_at))

        def in_unit(u):
            """Whether there is another escape and it is in unit u."""
            e = b.load(entry_slot)
            here = cgutils.alloca_once_value(b, ir.Constant(ir.IntType(1), 0))
            b.store(ir.Constant(ir.IntType(1), 0), here)
            with b.if_then(b.icmp_signed("<", e, count)):
                b.store(b.icmp_signed("==", unit_of(b, entry_at(b, escapes, e)), u), here)
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
            for r in range(at_once):
                at_slot = (t * at_once + r) * 2
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
MOST_VECTORS = 8 if WIDE else 1
"""Vectors up to which this, two or three at a time, is faster than unpacking the rows first."""


def near(vectors: int) -> Any:
    """`quad_dots` for as many vectors as there are registers for."""
    if vectors > 1 and not WIDE:  # never called: the same arguments as a stand-in, and nothing to compile

        @op(types.void, P, P, P, N, N, P, N, N, *[P] * (2 * vectors))
        def nothing(b, *_):
            return None

        return nothing
    return quad_dots(AT_ONCE, vectors)


quad_1, quad_2, quad_3 = near(1), near(2), near(3)

PACKED = "void(" + ", ".join(["int64"] * 10) + ")"


@kernel(PACKED)
def packed_direct(band, nbytes, rows, cols, x, x_row, vectors, y, y_row, floats):
    """y[t, r] = dot(row r, x[t]) for `rows` rows from the start of a band, `nbytes` apart each 16; few vectors.

    floats: scratch of `band_decode.DECODED_BYTES`.
    """
    groups = (cols + 31) // 32
    quad_bytes = (cols + 127) // 128 * UNIT_BYTES
    for r0 in range(0, rows, QUAD):
        this = band + r0 // BAND_ROWS * nbytes
        q = r0 % BAND_ROWS // QUAD
        header = at(this)
        start = ld_i32(header, ENDS + q * 4 - 4) if q > 0 else 0
        count = ld_i32(header, ENDS + q * 4) - start
        quad = at(this + HEADER + q * quad_bytes)
        escapes = at(this + HEADER + BAND_ROWS // QUAD * quad_bytes + start * 4)
        table = at(this + TABLE)
        n = min(QUAD, rows - r0)
        t = 0
        while t < vectors:
            left = vectors - t if WIDE else 1
            x0, y0 = at(x + t * x_row), at(y + t * y_row + r0 * 4)
            if left == 1:
                for j in range(0, n, AT_ONCE):
                    quad_1(quad, table, escapes, count, groups, at(floats), j, n - j, x0, step(y0, j * 4))
                t += 1
                continue
            x1, y1 = at(x + (t + 1) * x_row), at(y + (t + 1) * y_row + r0 * 4)
            if left == 2 or left == 4:
                quad_2(quad, table, escapes, count, groups, at(floats), 0, n, x0, x1, y0, y1)
                t += 2
            else:
                x2, y2 = at(x + (t + 2) * x_row), at(y + (t + 2) * y_row + r0 * 4)
                quad_3(quad, table, escapes, count, groups, at(floats), 0, n, x0, x1, x2, y0, y1, y2)
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
