"""Looking for NaN and infinity, in results and in stored weights.

Knows: that a float32 is finite exactly when its bits without the sign are below 0x7F800000.
Does not know: what to do about one that is not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .panels import PANEL_GROUPS
from .runtime import argument, caller, kernel
from .simd import at, himax, imax, isplat, ld_i32, ld_i64, ldi, st_i64

INFINITE_BITS = 0x7F800000


@kernel("int64(int64, int64, int64, int64)")
def largest_bits(y, y_row, count, cols):
    """The largest bit pattern without sign among `count` runs of `cols` float32, `y_row` bytes apart."""
    worst = isplat(0)
    rest = 0
    for t in range(count):
        p = at(y + t * y_row)
        whole = cols // 16 * 16
        for i in range(0, whole, 16):
            worst = imax(worst, ldi(p, i * 4) & 0x7FFFFFFF)
        for i in range(whole, cols):
            rest = max(rest, ld_i32(p, i * 4) & 0x7FFFFFFF)
    return max(rest, himax(worst))


ZERO_PAGE = 1 << 32
"""In the answer of `glance`: some page begins with zeros."""
PAGE = 4096


@kernel("int64(int64, int64, int64)")
def glance_at(address, nbytes, width):
    """The largest bit pattern without sign of the numbers of `width` 2 or 4 bytes (0: not asked), and `ZERO_PAGE`.

    nbytes: whole pages, counted from the address.
    """
    p = at(address)
    zero = 0
    for i in range(0, nbytes, PAGE):
        if ld_i64(p, i) == 0:
            zero = ZERO_PAGE
    a, b = isplat(0), isplat(0)
    if width == 2:
        for i in range(0, nbytes, 128):
            one, two = ldi(p, i), ldi(p, i + 64)
            a = imax(a, imax(one & 0x7FFF, (one >> 16) & 0x7FFF))
            b = imax(b, imax(two & 0x7FFF, (two >> 16) & 0x7FFF))
    if width == 4:
        for i in range(0, nbytes, 128):
            a = imax(a, ldi(p, i) & 0x7FFFFFFF)
            b = imax(b, ldi(p, i + 64) & 0x7FFFFFFF)
    return zero + himax(imax(a, b))


def glance(piece: npt.NDArray[np.uint8], width: int) -> int:
    """`checkpoint.scan.glance` at the speed of memory, while other Python threads run."""
    return int(glance_at(piece.__array_interface__["data"][0], len(piece), width))


invoke_7 = caller(7)


@kernel("void(int64, int64, int64)")
def search_piece(arguments, item, worker):
    """The first row of a run of rows that holds a weight that is not finite: see `matrix.find_nonfinite`."""
    unpack, weight, scale = argument(arguments, 0), argument(arguments, 1), argument(arguments, 2)
    row, scale_row, rows = argument(arguments, 3), argument(arguments, 4), argument(arguments, 5)
    cols, at_once = argument(arguments, 6), argument(arguments, 7)
    panel = argument(arguments, 8) + worker * argument(arguments, 9)
    groups = (cols + 31) // 32
    for r in range(item * at_once, min(item * at_once + at_once, rows)):
        for g0 in range(0, groups, PANEL_GROUPS):
            ng = min(PANEL_GROUPS, groups - g0)
            invoke_7(unpack, weight + r * row, scale + r * scale_row, 1, cols, g0, ng, panel)
            worst = isplat(0)
            for i in range(ng * 2):
                worst = imax(worst, ldi(at(panel), i * 64) & 0x7FFFFFFF)
            if himax(worst) >= INFINITE_BITS:
                st_i64(at(argument(arguments, 10)), item * 8, r)
                return
