"""Rows of bands unpacked to float32: the panels that many vectors are multiplied with, and whole rows.

Knows: where row number r of a run of bands is, and how to unpack a part of it, escapes patched.
Does not know: threads, files, what is summed.

A run of bands is handed on as the address of six int64 (`bands.described`), so the kernels for rows (`panels.many`,
`finite.search_piece`) find row r by its number instead of by an address.
"""

from __future__ import annotations

from numba import njit, types
from numba.core import cgutils

from .band_bytes import BAND_ROWS, ENDS, QUAD, ROW_BYTES, TABLE, UNIT, UNIT_BYTES, column_of
from .band_decode import FLOATS_BYTES, Table, half_unit, half_words, patch
from .band_sums import HEADER
from .panels import PANEL_GROUPS, UNPACK
from .rows import offset
from .runtime import argument, caller, kernel
from .simd import I64, N, P, address_of, at, ld_i32, ld_u8, op, st_u8, step, store
from .simd_more import INLINE


@op(types.void, P, P, N, P)
def unpack_floats(b, row, table, units, out):
    """A row's `units` units to float32, groups of 16 even columns, then 16 odd ones. Escapes are not patched."""
    looked = Table(b, table)
    with cgutils.for_range(b, units) as loop:
        unit = offset(b, row, b.mul(loop.index, I64(UNIT_BYTES)))
        to = offset(b, out, b.mul(loop.index, I64(FLOATS_BYTES)))
        for half in (0, 1):
            for k, pair in enumerate(half_unit(b, looked, unit, half)):
                for h in (0, 1):
                    store(b, pair[h], to, I64((2 * half + k) * 128 + h * 64))


@op(types.void, P, P, N, P)
def unpack_words(b, row, table, units, out):
    """A row's `units` units to bfloat16, in the order of the columns. Escapes are not patched."""
    looked = Table(b, table)
    with cgutils.for_range(b, units) as loop:
        unit = offset(b, row, b.mul(loop.index, I64(UNIT_BYTES)))
        to = offset(b, out, b.mul(loop.index, I64(2 * UNIT)))
        for half in (0, 1):
            for k, words in enumerate(half_words(b, looked, unit, half)):
                store(b, words, to, I64((2 * half + k) * 64))


@op(types.void, P, types.int64)
def patched(b, floats, entry):
    """An escape's high byte written over that of its place among a unit's floats of its row."""
    patch(b, floats, entry)


@njit(**INLINE)
def entry(escapes, i):
    """Escape number i of a band."""
    return types.int64(ld_i32(escapes, i * 4)) & 0xFFFFFFFF


@njit(**INLINE)
def first_escape(band, quad, escapes, unit):
    """(first, end): the numbers of a quad's escapes from `unit` on."""
    low = types.int64(ld_i32(at(band), ENDS + quad * 4 - 4)) if quad > 0 else 0
    end = types.int64(ld_i32(at(band), ENDS + quad * 4))
    high = end
    while low < high:
        middle = (low + high) >> 1
        if (entry(escapes, middle) >> 9) & 0x7FFF < unit:
            low = middle + 1
        else:
            high = middle
    return low, end


@kernel(UNPACK)
def packed_panel(described, row0, rows, cols, g0, groups, panel):
    """Unpack packed rows row0 .. row0 + rows - 1; g0 is a multiple of 4."""
    start, nbytes = argument(described, 0), argument(described, 1)
    quad_bytes = argument(described, 2)
    u0, units = g0 >> 2, (groups + 3) >> 2
    for r in range(rows):
        number = row0 + r
        band = start + number // BAND_ROWS * nbytes
        quad, j = number % BAND_ROWS // QUAD, number % QUAD
        row = at(band + HEADER + quad * quad_bytes + u0 * UNIT_BYTES + j * ROW_BYTES)
        floats = at(panel + r * PANEL_GROUPS * 128)
        unpack_floats(row, at(band + TABLE), units, floats)
        escapes = at(band + HEADER + BAND_ROWS // QUAD * quad_bytes)
        i, end = first_escape(band, quad, escapes, u0)
        while i < end:
            found = entry(escapes, i)
            unit = ((found >> 9) & 0x7FFF) - u0
            if unit >= units:
                break
            if (found >> 7) & 3 == j:
                patched(step(floats, unit * FLOATS_BYTES), found)
            i += 1


invoke_5, invoke_7 = caller(5), caller(7)


@kernel(UNPACK)
def plain_panel(described, row0, rows, cols, g0, groups, panel):
    """Unpack rows of plain bands, by the panel kernel of their form."""
    start, nbytes, row_bytes = argument(described, 0), argument(described, 1), argument(described, 2)
    unpack = argument(described, 4)
    r = types.int64(0)
    while r < rows:
        number = row0 + r
        n = min(rows - r, BAND_ROWS - number % BAND_ROWS)
        row = start + number // BAND_ROWS * nbytes + HEADER + number % BAND_ROWS * row_bytes
        invoke_7(unpack, row, 0, n, cols, g0, groups, panel + r * PANEL_GROUPS * 128)
        r += n


@njit(**INLINE)
def packed_words(band, quad_bytes, number, units, out):
    """Row `number` (0 .. 15) of the packed band at the address `band` to bfloat16: whole units, 256 bytes each."""
    quad, j = number // QUAD, number % QUAD
    unpack_words(at(band + HEADER + quad * quad_bytes + j * ROW_BYTES), at(band + TABLE), units, out)
    escapes = at(band + HEADER + BAND_ROWS // QUAD * quad_bytes)
    i, end = first_escape(band, quad, escapes, 0)
    while i < end:
        found = entry(escapes, i)
        if (found >> 7) & 3 == j:
            column = ((found >> 9) & 0x7FFF) * UNIT + column_of(found & 127)
            st_u8(out, column * 2 + 1, types.uint8(found >> 24))
        i += 1


@kernel("void(int64, int64, int64, int64, int64)")
def packed_row(band, quad_bytes, number, units, out):
    """`packed_words`, for those that call it by its address."""
    packed_words(band, quad_bytes, number, units, at(out))


@njit(**INLINE)
def row_of_bands(described, number, cols, words):
    """Row `number` of a run of bands in its source's form: where it is stored, or unpacked to `words`."""
    band = argument(described, 0) + number // BAND_ROWS * argument(described, 1)
    line = argument(described, 2)
    if argument(described, 5) == 0:
        return at(band + HEADER + number % BAND_ROWS * line)
    units = (cols + UNIT - 1) // UNIT
    invoke_5(argument(described, 4), band, line, number % BAND_ROWS, units, address_of(words))
    return words


@kernel("void(int64, int64, int64)")
def decode_piece(arguments, item, worker):
    """One packed band back to rows of bfloat16: see `bands.decode_bands`."""
    weight, row, rows = argument(arguments, 0), argument(arguments, 1), argument(arguments, 2)
    cols, nbytes = argument(arguments, 3), argument(arguments, 6)
    words = at(argument(arguments, 4) + worker * argument(arguments, 11))
    band, r0 = argument(arguments, 5) + item * nbytes, item * BAND_ROWS
    units = (cols + UNIT - 1) // UNIT
    for r in range(min(BAND_ROWS, rows - r0)):
        out = at(weight + (r0 + r) * row)
        if cols % UNIT == 0:
            packed_words(band, units * UNIT_BYTES, r, units, out)
        else:
            packed_words(band, units * UNIT_BYTES, r, units, words)
            for i in range(row):
                st_u8(out, i, ld_u8(words, i))
