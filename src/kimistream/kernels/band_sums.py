"""The checksum of a band: fast, the same on every CPU, sensitive to every word and to its place.

Knows: how the bytes of a band become 64 bits. Does not know: what they mean.

The band's 64-byte lines are dealt in turn to four accumulators of 16 lanes of 32 bits. A lane takes its word by
h = (h ^ word) * odd, h ^= h >> 15, which can be undone for a known word as for a known h: so a single changed word
always changes its lane. The 64 lanes and the words of the header are folded into 64 bits by steps of the same kind.
"""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types

from .runtime import argument, kernel
from .simd import I32, I64, VI, I, N, at, isplat, ld_i64, ldi, op, st_i64
from .simd_more import INLINE

HEADER = 64
"""Bytes of a band's header; its first eight are the checksum."""

ODD = 0x9E3779B1
WIDE_ODD = 0x9E3779B97F4A7C15


@op(types.int64, types.int64, types.int64)
def taken(b, h, word):
    """(h ^ word) times an odd number, then its upper half into its lower one; all modulo 2^64."""
    h = b.mul(b.xor(h, word), ir.Constant(I64, WIDE_ODD))
    return b.xor(h, b.lshr(h, I64(32)))


@op(types.int64, I, N)
def word(b, v, i):
    """Lane `i` of 16 int32, without sign."""
    return b.zext(b.extract_element(v, b.trunc(i, I32)), I64)


@op(I, I, I)
def lanes_taken(b, h, v):
    """`taken` for 16 lanes of 32 bits."""
    h = b.mul(b.xor(h, v), ir.Constant(VI, [ODD] * 16))
    return b.xor(h, b.lshr(h, ir.Constant(VI, [15] * 16)))


@njit(**INLINE)
def band_sum(band, nbytes, place):
    """The checksum of the band of `nbytes` (a multiple of 64) at the address `band`, but for its first eight bytes."""
    p = at(band + HEADER)
    rest = nbytes - HEADER
    h0, h1, h2, h3 = isplat(1), isplat(2), isplat(3), isplat(4)
    whole = rest & ~255
    for i in range(0, whole, 256):
        h0 = lanes_taken(h0, ldi(p, i))
        h1 = lanes_taken(h1, ldi(p, i + 64))
        h2 = lanes_taken(h2, ldi(p, i + 128))
        h3 = lanes_taken(h3, ldi(p, i + 192))
    for i in range(whole, rest, 64):
        h0 = lanes_taken(h0, ldi(p, i))
    h = taken(nbytes, place)
    for i in range(8, HEADER, 8):
        h = taken(h, ld_i64(at(band), i))
    for i in range(16):
        h = taken(h, word(h0, i) | word(h1, i) << 32)
        h = taken(h, word(h2, i) | word(h3, i) << 32)
    return h


@kernel("void(int64, int64, int64)")
def check_piece(arguments, item, worker):
    """The first band of a piece whose checksum is wrong: see `bands.check_bands`."""
    start, nbytes, count = argument(arguments, 0), argument(arguments, 1), argument(arguments, 2)
    place, step, at_once = argument(arguments, 3), argument(arguments, 4), argument(arguments, 5)
    for k in range(item * at_once, min(item * at_once + at_once, count)):
        band = start + k * nbytes
        if ld_i64(at(band), 0) != band_sum(band, nbytes, place + k * step):
            st_i64(at(argument(arguments, 6)), item * 8, k)
            return
