"""Many experts over many rows in one call: w2 act(w1 x, w3 x) for each (expert, rows) task.

Knows: how the work of all tasks is cut into pieces that keep every thread busy, for one task of one row as well as
for hundreds of tasks of many rows.
Does not know: which experts were chosen, where they were read from, or how their outputs are added up.

Two rounds over all threads. In the first, a piece is a run of rows of w1 and the same rows of w3 of one task, then
the activation, which leaves its part of w2's input in the order `matrix.split_rows` makes. In the second, a piece is
a run of rows of w2. Every number is made as `matrix.matmul` and `glu.glu` make it, so the bits are theirs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from numba import njit

from . import panels
from .finite import INFINITE_BITS
from .formats import Activation, WeightFormat
from .glu import glu16
from .jobs import real
from .matrix import padded, row_bytes, scale_row_bytes
from .rows import FORMS, place
from .runtime import OPTIONS, Kernel, argument, caller, kernel, run, scratch, threads
from .simd import at, evens, himax, imax, isplat, ld_i32, ld_i64, ldf, ldi, odds, st_i64, stf
from .simd_more import ldf_part

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Addresses = npt.NDArray[np.int64]

PIECE = 96
"""Rows of a piece are a multiple of this: whole groups of 32, whole strips and bands."""
TOGETHER = 64
"""Rows of several experts that are computed together, beside those of the largest task."""

invoke_11, invoke_15 = caller(11), caller(15)

# The arguments of both rounds: numbers of words in their block.
DIRECT, MOST_DIRECT, MANY, UNPACK, SCRATCH, SCRATCH_EACH = 0, 1, 2, 3, 4, 5
PIECES, AT_ONCE, ROW_START, ROW_INDEX, OUT_INDEX, BAD = 6, 7, 8, 9, 10, 11
ADDRESSES, ROWS, COLS, ROW, SCALE_ROW = 12, 13, 14, 15, 16
X, X_ROW, HIDDEN, UP, HIDDEN_ROW, OUT, OUT_ROW = 17, 18, 19, 20, 21, 22, 23
ACTIVATION, BETA, LINEAR_BETA, WORDS = 24, 25, 26, 27


@njit(forceinline=True, **OPTIONS)
def product(a, worker, w, s, r0, n, x, x_row, x_index, vectors, y, y_row, y_index):
    """y = rows r0 .. r0 + n of a matrix times some vectors, by whichever kernel suits their number."""
    cols, row, scale_row = argument(a, COLS), argument(a, ROW), argument(a, SCALE_ROW)
    w, s = w + r0 * row, s + r0 * scale_row
    if vectors <= argument(a, MOST_DIRECT):
        invoke_11(argument(a, DIRECT), w, s, n, cols, x, x_row, x_index, vectors, y, y_row, y_index)
    else:
        own = argument(a, SCRATCH) + worker * argument(a, SCRATCH_EACH)
        invoke_15(
            argument(a, MANY),
            argument(a, UNPACK),
            w,
            s,
            row,
            scale_row,
            n,
            cols,
            x,
            x_row,
            x_index,
            vectors,
            y,
            y_row,
            y_index,
            own,
        )


@njit(forceinline=True, **OPTIONS)
def largest(p, n):
    """The largest bits without sign among n float32."""
    worst, rest = isplat(0), 0
    for i in range(n // 16):
        worst = imax(worst, ldi(p, i * 64) & 0x7FFFFFFF)
    for i in range(n // 16 * 16, n):
        rest = max(rest, ld_i32(p, i * 4) & 0x7FFFFFFF)
    return max(rest, himax(worst))


@njit(forceinline=True, **OPTIONS)
def part(p, i, n):
    """Numbers i .. i + 16 behind p, with zeros from number n on."""
    if i + 16 <= n:
        return ldf(p, i * 4)
    return ldf_part(p, i * 4, max(0, n - i))


@njit(forceinline=True, **OPTIONS)
def _task(a, item):
    """What piece of work `item` is: task, its first vector and how many, first row and how many, its addresses."""
    task, piece = item // argument(a, PIECES), item % argument(a, PIECES)
    starts, at_once = at(argument(a, ROW_START)), argument(a, AT_ONCE)
    j0 = ld_i32(starts, task * 4) - ld_i32(starts, 0)
    vectors = ld_i32(starts, task * 4 + 4) - ld_i32(starts, task * 4)
    r0 = piece * at_once
    return task, j0, vectors, r0, min(at_once, argument(a, ROWS) - r0), at(argument(a, ADDRESSES) + task * 48)


@kernel("void(int64, int64, int64)")
def _inner_piece(a, item, worker):
    """Rows of w1 and w3 of one task, the activation, and the split order for w2."""
    task, j0, vectors, r0, n, words = _task(a, item)
    x, x_row, index = argument(a, X), argument(a, X_ROW), argument(a, ROW_INDEX) + j0 * 4
    row = argument(a, HIDDEN_ROW)
    gate, up = argument(a, HIDDEN) + j0 * row + r0 * 4, argument(a, UP) + j0 * row + r0 * 4
    product(a, worker, ld_i64(words, 0), ld_i64(words, 8), r0, n, x, x_row, index, vectors, gate, row, 0)
    product(a, worker, ld_i64(words, 32), ld_i64(words, 40), r0, n, x, x_row, index, vectors, up, row, 0)
    activation, beta, linear_beta = argument(a, ACTIVATION), real(a, BETA), real(a, LINEAR_BETA)
    for t in range(vectors):
        g, u = at(gate + t * row), at(up + t * row)
        if max(largest(g, n), largest(u, n)) >= INFINITE_BITS:
            st_i64(at(argument(a, BAD)), task * 8, 1)
        for i in range(0, n, 32):
            low = glu16(activation, part(g, i, n), part(u, i, n), beta, linear_beta)
            high = glu16(activation, part(g, i + 16, n), part(u, i + 16, n), beta, linear_beta)
            stf(g, i * 4, evens(low, high))
            stf(g, i * 4 + 64, odds(low, high))


@kernel("void(int64, int64, int64)")
def _outer_piece(a, item, worker):
    """Rows of w2 of one task."""
    task, j0, vectors, r0, n, words = _task(a, item)
    row = argument(a, HIDDEN_ROW)
    hidden = argument(a, HIDDEN) + j0 * row
    out, out_row, index = argument(a, OUT) + r0 * 4, argument(a, OUT_ROW), argument(a, OUT_INDEX) + j0 * 4
    product(
        a, worker, ld_i64(words, 16), ld_i64(words, 24), r0, n, hidden, row, 0, vectors, out, out_row, index
    )
    for t in range(vectors):
        if largest(place(out, out_row, index, t), n) >= INFINITE_BITS:
            st_i64(at(argument(a, BAD)), task * 8, 1)


def scratch_bytes(rows: int, intermediate: int, width: int) -> int:
    """Bytes of scratch that `grouped_experts` wants when no task has more than `rows` rows."""
    return 4 * (rows + TOGETHER) * 2 * padded(intermediate)


def grouped_experts(
    fmt: WeightFormat,
    addresses: Addresses,
    row_start: Ints,
    row_index: Ints,
    out_index: Ints,
    xs: Floats,
    intermediate: int,
    activation: Activation,
    beta: float,
    linear_beta: float,
    out: Floats,
    scratch_: Floats,
) -> int:
    """out[out_index[j]] = w2 @ act(w1 @ x[row_index[j]], w3 @ x[row_index[j]]) for every task i and every j in
    row_start[i]:row_start[i + 1]. Returns -1, or the first task whose numbers were not finite.

    addresses i64[n, 6]: w1, its scales, w2, its scales, w3, its scales, at any alignment (scales 0 where the
    form has none). xs f32[T, padded(L)]: split rows. out f32[*, L]. scratch_: float32, `scratch_bytes`.
    The activation and its constants are those of `glu` (ARCHITECTURE section 7).
    """
    width, hidden_row = out.shape[1], padded(intermediate)
    form = FORMS[fmt]
    a = np.zeros(WORDS, np.int64)
    a[[DIRECT, MOST_DIRECT]] = form.kernel.address, form.vectors
    a[[MANY, UNPACK]] = panels.many.address, panels.PANEL[fmt].address
    a[[SCRATCH, SCRATCH_EACH]] = scratch(panels.SCRATCH_BYTES), panels.SCRATCH_BYTES
    a[[X, X_ROW, HIDDEN_ROW]] = xs.ctypes.data, xs.strides[0], 4 * hidden_row
    a[[OUT, OUT_ROW]] = out.ctypes.data, out.strides[0]
    a[ACTIVATION] = int(activation)
    a.view(np.float32)[[2 * BETA, 2 * LINEAR_BETA]] = beta, linear_beta
    row_start, row_index, out_index = (
        np.ascontiguousarray(each, np.int32) for each in (row_start, row_index, out_index)
    )
    addresses = np.ascontiguousarray(addresses, np.int64)
    for first, last in _groups(np.diff(row_start).tolist(), len(scratch_) // (2 * hidden_row)):
        j0, rows = int(row_start[first]), int(row_start[last] - row_start[first])
        bad = np.zeros(last - first, np.int64)
        a[[HIDDEN, UP]] = scratch_.ctypes.data, scratch_.ctypes.data + 4 * rows * hidden_row
        a[[BAD, ADDRESSES]] = bad.ctypes.data, addresses[first:].ctypes.data
        a[[ROW_START, ROW_INDEX]] = row_start[first:].ctypes.data, row_index[j0:].ctypes.data
        a[OUT_INDEX] = out_index[j0:].ctypes.data
        _round(a, _inner_piece, fmt, last - first, intermediate, width)
        _round(a, _outer_piece, fmt, last - first, width, intermediate)
        if bad.any():
            return first + int(np.flatnonzero(bad)[0])
    return -1


def _groups(counts: list[int], most: int) -> Iterator[tuple[int, int]]:
    """Runs of tasks with at most `most` rows together."""
    first, held = 0, 0
    for i, count in enumerate(counts):
        if held and held + count > most:
            yield first, i
            first, held = i, 0
        held += count
    if held:
        yield first, len(counts)


def _round(
    a: npt.NDArray[np.int64], piece: Kernel, fmt: WeightFormat, tasks: int, rows: int, cols: int
) -> None:
    """Run `piece` over all runs of rows of the `rows` x `cols` matrices of all tasks."""
    share = -(-rows * tasks // (8 * threads() * PIECE))
    at_once = PIECE * max(1, min(4, share))
    pieces = -(-rows // at_once)
    a[[PIECES, AT_ONCE, ROWS, COLS]] = pieces, at_once, rows, cols
    a[[ROW, SCALE_ROW]] = row_bytes(fmt, cols), scale_row_bytes(fmt, cols)
    run(piece, a, tasks * pieces)
