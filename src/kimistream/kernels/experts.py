"""Many experts over many rows in one call: w2 act(w1 x, w3 x) for each (expert, rows) task.

Knows: how the products of all tasks are cut into pieces of about the same size, whatever their rows.
Does not know: which experts were chosen, where they were read from, or how their outputs are added up.

The products are those of `matrix`, piece by piece, so a task's result is the same alone, in company, and
for any cut. Two rounds over all threads: w1 and w3 of every task, then (after the activation) every w2.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from . import panels, rows
from .formats import Activation, WeightFormat
from .glu import glu
from .matrix import PIECE_BYTES, all_finite, padded, row_bytes, scale_row_bytes, split_rows
from .runtime import argument, caller, kernel, run, scratch
from .simd import at, ld_i64

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Addresses = npt.NDArray[np.int64]

invoke_6, invoke_13 = caller(6), caller(13)

TOGETHER = 16
"""Rows of several experts that are computed together, beside those of the largest task."""

_ITEM = 6


@kernel("void(int64, int64, int64)")
def _piece(arguments, item, worker):
    """A run of rows of one expert's matrix: item words are (w, scale, rows, x, vectors, y)."""
    one, many, unpack = argument(arguments, 0), argument(arguments, 1), argument(arguments, 2)
    row, scale_row, cols = argument(arguments, 3), argument(arguments, 4), argument(arguments, 5)
    x_row, y_row = argument(arguments, 6), argument(arguments, 7)
    words = at(argument(arguments, 8) + item * 48)
    w, s, n = ld_i64(words, 0), ld_i64(words, 8), ld_i64(words, 16)
    x, vectors, y = ld_i64(words, 24), ld_i64(words, 32), ld_i64(words, 40)
    if vectors == 1:
        invoke_6(one, w, s, n, cols, x, y)
    else:
        own = argument(arguments, 9) + worker * argument(arguments, 10)
        invoke_13(many, unpack, w, s, row, scale_row, n, cols, x, x_row, vectors, y, y_row, own)


def scratch_bytes(rows_: int, intermediate: int, width: int) -> int:
    """Bytes of scratch that `grouped_experts` wants when no task has more than `rows_` rows."""
    return 4 * (rows_ + TOGETHER) * _floats_per_row(intermediate, width)


def _floats_per_row(intermediate: int, width: int) -> int:
    return 2 * intermediate + padded(intermediate) + width + padded(width)


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
    width = out.shape[1]
    counts = np.diff(row_start)
    for first, last in _groups(counts, len(scratch_) // _floats_per_row(intermediate, width)):
        j0, j1 = int(row_start[first]), int(row_start[last])
        m = j1 - j0
        gate, up, hidden, result, x = _areas(scratch_, m, intermediate, width)
        np.take(xs, row_index[j0:j1], axis=0, out=x)
        starts, group = row_start[first:last] - j0, counts[first:last]
        tasks = addresses[first:last]
        _products(fmt, tasks, (0, 4), intermediate, width, x, (gate, up), starts, group)
        if not _finite(gate, up):
            return first + _first_bad((gate, up), starts, group)
        glu(activation, gate, up, beta, linear_beta, up)
        split_rows(up, hidden)
        _products(fmt, tasks, (2,), width, intermediate, hidden, (result,), starts, group)
        if not _finite(result):
            return first + _first_bad((result,), starts, group)
        out[out_index[j0:j1]] = result
    return -1


def _groups(counts: npt.NDArray[np.int32], most: int) -> Iterator[tuple[int, int]]:
    """Runs of tasks with at most `most` rows together."""
    first, held = 0, 0
    for i, count in enumerate(counts.tolist()):
        if held and held + count > most:
            yield first, i
            first, held = i, 0
        held += count
    if held:
        yield first, len(counts)


def _areas(memory: Floats, m: int, intermediate: int, width: int) -> list[Floats]:
    """The scratch cut into (gate, up, hidden, result, x) of m rows each."""
    areas, start = [], 0
    for columns in (intermediate, intermediate, padded(intermediate), width, padded(width)):
        areas.append(memory[start : start + m * columns].reshape(m, columns))
        start += m * columns
    return areas


def _products(
    fmt: WeightFormat,
    addresses: Addresses,
    columns: tuple[int, ...],
    count: int,
    cols: int,
    x: Floats,
    results: tuple[Floats, ...],
    starts: Ints,
    vectors: npt.NDArray[np.int32],
) -> None:
    """results[k][rows of task i] = x[rows of task i] @ W.T, W = the `count` x `cols` at addresses[i, columns[k]]."""
    row, scale_row = row_bytes(fmt, cols), scale_row_bytes(fmt, cols)
    single = max(1, PIECE_BYTES // max(1, row) // 12) * 12
    at_once = np.where(vectors == 1, single, [panels.rows_at_once(int(v)) for v in vectors])
    pieces = -(-count // at_once)
    task = np.repeat(np.arange(len(vectors)), pieces)
    piece = np.arange(len(task)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    r0 = piece * at_once[task]
    items = np.empty((len(columns), len(task), _ITEM), np.int64)
    for k, (column, y) in enumerate(zip(columns, results, strict=True)):
        items[k, :, 0] = addresses[task, column] + r0 * row
        items[k, :, 1] = addresses[task, column + 1] + r0 * scale_row
        items[k, :, 2] = np.minimum(at_once[task], count - r0)
        items[k, :, 3] = x.ctypes.data + starts[task].astype(np.int64) * x.strides[0]
        items[k, :, 4] = vectors[task]
        items[k, :, 5] = y.ctypes.data + starts[task].astype(np.int64) * y.strides[0] + 4 * r0
    own = panels.SCRATCH_BYTES if int(vectors.max()) > 1 else 0
    arguments = np.array(
        [
            rows.ONE[fmt].address,
            panels.many.address,
            panels.PANEL[fmt].address,
            row,
            scale_row,
            cols,
            x.strides[0],
            results[0].strides[0],
            items.ctypes.data,
            scratch(own) if own else 0,
            own,
        ],
        np.int64,
    )
    run(_piece, arguments, len(columns) * len(task))


def _finite(*arrays: Floats) -> bool:
    return all(all_finite(array) for array in arrays)


def _first_bad(arrays: tuple[Floats, ...], starts: Ints, counts: npt.NDArray[np.int32]) -> int:
    for i, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
        if not _finite(*(array[start : start + count] for array in arrays)):
            return i
    return 0
