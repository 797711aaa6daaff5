"""A matrix of bfloat16 to bands of about 12 bits per weight, and back.

Knows: the bytes of a band (docs/PACK.md): header, quads of rows cut into units of 128 columns, escapes.
Does not know: files, products, the checksum.

A bfloat16 word is its low byte (the lowest bit of the exponent, 7 bits of the mantissa), kept as it is, and its high
byte (sign, upper bits of the exponent), kept as a code of 4 bits. Codes 0..14 are the band's most frequent high bytes;
code 15 is the high byte 0 (zero and the tiniest numbers), unless the list of escapes names another one for its place.

Order of the columns in a unit, the same for low bytes and codes: column c of the unit is place
64 * (c / 64) + 16 * (c % 32 / 8) + 8 * (c / 32 % 2) + c % 8. So interleaving low bytes and high bytes inside each 16
bytes, as every CPU can, gives the words of one group of 32 columns from the lower halves and of the next one from the
upper halves, in the order of the columns. Byte j of the codes holds place j (low nibble) and place 64 + j.
"""

from __future__ import annotations

from numba import njit, types

from .band_sums import HEADER, band_sum
from .runtime import argument, kernel
from .simd import I32, N, P, at, ld_i64, ld_u8, op, st_i64, st_u8, store
from .simd_more import INLINE

BAND_ROWS, QUAD = 16, 4
UNIT = 128
"""Columns of a unit."""
ROW_BYTES = UNIT + UNIT // 2
"""Bytes of a row in a unit: low bytes, then codes."""
UNIT_BYTES = QUAD * ROW_BYTES
ENDS, TABLE = 8, 24
"""Where in the header the ends of the quads' escapes (4 x u32) and the table (16 bytes) are."""
ESCAPE = 15
SCRATCH_BYTES = 4 * 2048 + 512
"""Of one thread: four histograms, and the code of each high byte."""


@op(types.void, P, N, types.int64)
def st_u32(b, p, off, v):
    """Store the lower half of an int64."""
    store(b, b.trunc(v, I32), p, off)


@njit(**INLINE)
def _byte(p, off):
    return types.int64(ld_u8(p, off))


@njit(**INLINE)
def _low_bytes(v):
    """The four low bytes of four half-words."""
    v &= 0x00FF00FF00FF00FF
    v = (v | (v >> 8)) & 0x0000FFFF0000FFFF
    return (v | (v >> 16)) & 0xFFFFFFFF


@njit(**INLINE)
def place_of(column):
    """The place of a column of a unit."""
    return (column & 64) + ((column & 24) << 1) + ((column & 32) >> 2) + (column & 7)


@njit(**INLINE)
def column_of(place):
    """The column of a place: the inverse of `place_of`."""
    return (place & 64) + ((place & 48) >> 1) + ((place & 8) << 2) + (place & 7)


@njit(**INLINE)
def _count(weight, row, rows, cols, counts):
    """How often each high byte occurs: counts[256], int64; three more histograms behind it are scratch."""
    for i in range(0, 4 * 2048, 8):
        st_i64(counts, i, 0)
    for r in range(rows):
        p = at(weight + r * row)
        whole = cols & ~3
        for i in range(0, whole * 2, 8):
            v = ld_i64(p, i)
            for k in range(4):
                h = k * 2048 + ((v >> (16 * k + 8)) & 255) * 8
                st_i64(counts, h, ld_i64(counts, h) + 1)
        for i in range(whole, cols):
            h = _byte(p, i * 2 + 1) * 8
            st_i64(counts, h, ld_i64(counts, h) + 1)
    for i in range(0, 2048, 8):
        total = ld_i64(counts, i) + ld_i64(counts, i + 2048)
        st_i64(counts, i, total + ld_i64(counts, i + 2 * 2048) + ld_i64(counts, i + 3 * 2048))


@njit(**INLINE)
def _choose(counts, codes):
    """Give codes to the 15 most frequent high bytes (on a tie to the lower one); the number of escapes.

    codes[256]: the code of each high byte, by ascending byte; 15 for all others.
    """
    for i in range(256):
        st_u8(codes, i, types.uint8(255))
    left = types.int64(0)
    for i in range(1, 256):
        left += ld_i64(counts, i * 8)
    for _ in range(ESCAPE):
        most, best = types.int64(0), types.int64(0)
        for i in range(1, 256):
            n = ld_i64(counts, i * 8)
            if n > most and _byte(codes, i) == 255:
                most, best = n, i
        if most == 0:
            break
        st_u8(codes, best, types.uint8(0))
        left -= most
    code = types.int64(0)
    for i in range(256):
        if _byte(codes, i) == 0:
            st_u8(codes, i, types.uint8(code))
            code += 1
        else:
            st_u8(codes, i, types.uint8(ESCAPE))
    return left


@kernel("void(int64, int64, int64)")
def need_piece(arguments, item, worker):
    """The escapes that a band of 16 rows of a matrix has: see `bands.choose_form`."""
    weight, row, rows = argument(arguments, 0), argument(arguments, 1), argument(arguments, 2)
    cols, counts = argument(arguments, 3), at(argument(arguments, 4) + worker * SCRATCH_BYTES)
    r0 = item * BAND_ROWS
    _count(weight + r0 * row, row, min(BAND_ROWS, rows - r0), cols, counts)
    codes = at(argument(arguments, 4) + worker * SCRATCH_BYTES + 4 * 2048)
    st_i64(at(argument(arguments, 5)), item * 8, _choose(counts, codes))


@njit(**INLINE)
def _encode_unit(source, columns, out, codes, where, escapes, used, room):
    """One row of one unit: `columns` columns from `source`; the number of escapes used then."""
    found = types.int64(0)
    for i in range(0, ROW_BYTES, 8):
        st_i64(out, i, 0)
    for half in range(2):
        for chunk in range(8):
            c = half * 64 + chunk * 8
            place = place_of(c)
            n = min(8, columns - c)
            if n == 8:
                low = ld_i64(source, c * 2)
                high = ld_i64(source, c * 2 + 8)
                st_u32(out, place, _low_bytes(low))
                st_u32(out, place + 4, _low_bytes(high))
                for i in range(8):
                    byte = ((low if i < 4 else high) >> ((i & 3) * 16 + 8)) & 255
                    code = _byte(codes, byte)
                    at_code = UNIT + (place & 63) + i
                    st_u8(out, at_code, types.uint8(_byte(out, at_code) | (code << (4 * half))))
                    found |= (code == ESCAPE) & (byte != 0)
            else:
                for i in range(8):
                    code, at_code = types.int64(ESCAPE), UNIT + (place & 63) + i
                    if i < n:
                        byte = _byte(source, (c + i) * 2 + 1)
                        code = _byte(codes, byte)
                        st_u8(out, place + i, ld_u8(source, (c + i) * 2))
                        found |= (code == ESCAPE) & (byte != 0)
                    st_u8(out, at_code, types.uint8(_byte(out, at_code) | (code << (4 * half))))
    if found:
        for place in range(UNIT):
            c = column_of(place)
            if c < columns:
                byte = _byte(source, c * 2 + 1)
                if byte != 0 and _byte(codes, byte) == ESCAPE:
                    if used < room:
                        st_u32(escapes, used * 4, where | place | (byte << 24))
                    used += 1
    return used


@kernel("void(int64, int64, int64)")
def encode_piece(arguments, item, worker):
    """One band: see `bands.encode_bands`."""
    weight, row, rows = argument(arguments, 0), argument(arguments, 1), argument(arguments, 2)
    cols, counts = argument(arguments, 3), at(argument(arguments, 4) + worker * SCRATCH_BYTES)
    nbytes, room, place = argument(arguments, 6), argument(arguments, 7), argument(arguments, 8)
    band = argument(arguments, 5) + item * nbytes
    codes = at(argument(arguments, 4) + worker * SCRATCH_BYTES + 4 * 2048)
    r0 = item * BAND_ROWS
    n = min(BAND_ROWS, rows - r0)
    weight += r0 * row
    _count(weight, row, n, cols, counts)
    _choose(counts, codes)
    for i in range(0, HEADER, 8):
        st_i64(at(band), i, 0)
    for i in range(1, 256):
        if _byte(codes, i) != ESCAPE:
            st_u8(at(band), TABLE + _byte(codes, i), types.uint8(i))
    units = (cols + UNIT - 1) // UNIT
    quad_bytes = units * UNIT_BYTES
    escapes = at(band + HEADER + BAND_ROWS // QUAD * quad_bytes)
    for i in range(0, nbytes - HEADER - BAND_ROWS // QUAD * quad_bytes, 8):
        st_i64(escapes, i, 0)
    used = types.int64(0)
    for quad in range(BAND_ROWS // QUAD):
        for u in range(units):
            for j in range(QUAD):
                r = quad * QUAD + j
                out = at(band + HEADER + quad * quad_bytes + u * UNIT_BYTES + j * ROW_BYTES)
                columns = min(UNIT, cols - u * UNIT) if r < n else 0
                source = at(weight + r * row + u * UNIT * 2)
                where = (u << 9) | (j << 7)
                used = _encode_unit(source, columns, out, codes, where, escapes, used, room)
        st_u32(at(band), ENDS + quad * 4, used)
    if used > room:
        st_i64(at(argument(arguments, 10)), item * 8, used)
    st_i64(at(band), 0, band_sum(band, nbytes, place + item * argument(arguments, 9)))


@njit(**INLINE)
def _copy(source, out, nbytes):
    whole = nbytes & ~7
    for i in range(0, whole, 8):
        st_i64(out, i, ld_i64(source, i))
    for i in range(whole, nbytes):
        st_u8(out, i, ld_u8(source, i))


@kernel("void(int64, int64, int64)")
def store_piece(arguments, item, worker):
    """One band of a plain form: the rows as they are; arguments as for `encode_piece`."""
    weight, row, rows = argument(arguments, 0), argument(arguments, 1), argument(arguments, 2)
    nbytes, place = argument(arguments, 6), argument(arguments, 8)
    band, r0 = argument(arguments, 5) + item * nbytes, item * BAND_ROWS
    used = min(BAND_ROWS, rows - r0) * row
    for i in range(0, HEADER, 8):
        st_i64(at(band), i, 0)
    _copy(at(weight + r0 * row), at(band + HEADER), used)
    for i in range(HEADER + used, nbytes):
        st_u8(at(band), i, types.uint8(0))
    st_i64(at(band), 0, band_sum(band, nbytes, place + item * argument(arguments, 9)))


@kernel("void(int64, int64, int64)")
def restore_piece(arguments, item, worker):
    """One band of a plain form back to rows; arguments as for `encode_piece`."""
    weight, row, rows = argument(arguments, 0), argument(arguments, 1), argument(arguments, 2)
    r0 = item * BAND_ROWS
    band = argument(arguments, 5) + item * argument(arguments, 6)
    _copy(at(band + HEADER), at(weight + r0 * row), min(BAND_ROWS, rows - r0) * row)
