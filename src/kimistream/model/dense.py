"""Multiplying rows by a matrix of the tape, part by part as its blocks arrive.

Knows: that a matrix comes in parts, as stored rows or as bands of a pack, and that a number which is not finite
must be traced to its weight.
Does not know: what the matrix is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.config import ModelConfig
from kimistream.checkpoint.pack_format import BAND_ROWS
from kimistream.checkpoint.table import Checkpoint
from kimistream.errors import NumberError
from kimistream.kernels.bands import BandForm, decode_bands, find_nonfinite_bands, matmul_bands
from kimistream.kernels.matrix import all_finite, find_nonfinite, matmul, row_bytes
from kimistream.model.order import Matrix, Run, Score, granule_of
from kimistream.stream.tape import Part, Tape

Floats = npt.NDArray[np.float32]

DECODED_BYTES = 4 << 20
"""Bands of whole heads are decoded so much at a time."""


class Rows(NamedTuple):
    """Rows `row0 : row1` of a matrix at `address`: as bands of `form`, or as stored rows (None)."""

    row0: int
    row1: int
    address: int
    form: BandForm | None


class Dense:
    """y = W x for the matrices of a tape, taken strictly in the tape's order."""

    def __init__(self, tape: Tape, checkpoint: Checkpoint) -> None:
        self._tape = tape
        self._checkpoint = checkpoint
        self._decoded = np.empty(0, np.uint8)

    def __call__(self, matrix: Matrix, xs: Floats, y: Floats) -> Floats:
        """Fill y `[T, rows]` with the product of the matrix and xs `[T, padded(cols)]` (split rows).

        Raises NumberError naming the tensor when a result is NaN or infinite: with finite x that
        happens exactly when a weight is, or when a sum overflows.
        """
        for rows in self._taken(matrix):
            multiply(matrix, rows, xs, y)
            if not all_finite(y, rows.row0, rows.row1):
                raise self.trace(matrix, rows)
        return y

    def stored(self, matrix: Matrix, granule: int) -> Iterator[Rows]:
        """The rows of a matrix as the checkpoint stores them, whole granules at a time.

        What comes from bands is decoded; rows are valid until the next are asked for.
        """
        for rows in self._taken(matrix):
            if rows.form is None:
                yield rows
                continue
            together = decoded_rows(matrix, granule)
            nbytes = row_bytes(matrix.format, matrix.cols)
            if len(self._decoded) < together * nbytes:
                self._decoded = np.empty(together * nbytes, np.uint8)
            target = self._decoded.ctypes.data
            for row0 in range(rows.row0, rows.row1, together):
                count = min(together, rows.row1 - row0)
                address = rows.address + (row0 - rows.row0) // BAND_ROWS * rows.form.nbytes
                decode_bands(rows.form, address, count, target)
                yield Rows(row0, row0 + count, target, None)

    def _taken(self, matrix: Matrix) -> Iterator[Rows]:
        for run in matrix.runs:
            for part in self._tape.take(run.index):
                yield rows_of(run, part)

    def trace(self, matrix: Matrix, rows: Rows) -> NumberError:
        """The error for a result of these rows that is not finite."""
        return self.bad_number(matrix.name, *_place(matrix, rows))

    def bad_number(self, tensor: str, row: int, col: int) -> NumberError:
        """The error for a product that is not finite; row and col name the weight, or are -1."""
        path = self._checkpoint.shard_of(tensor)
        if row >= 0:
            return NumberError(
                f"tensor {tensor} holds a NaN or an infinity at row {row}, column {col} (in {path})",
                self._checkpoint.how_to_fetch(tensor),
            )
        return NumberError(
            f"multiplying by tensor {tensor} (in {path}) gave a number that is not finite, although its "
            "weights are",
            "The weights are finite but far too large: this is not a checkpoint as it was released.",
        )


def rows_of(run: Run, part: Part) -> Rows:
    """The rows of a matrix that a part of one of its runs holds."""
    scale = 1 if run.form is None else BAND_ROWS
    return Rows(
        run.row0 + part.row0 * scale, run.row0 + min(part.row1 * scale, run.rows), part.address, run.form
    )


def multiply(matrix: Matrix, rows: Rows, xs: Floats, y: Floats) -> None:
    """y[:, row0 : row1] = x @ W.T for some rows of a matrix."""
    if rows.form is None:
        matmul(matrix.format, rows.address, 0, rows.row1 - rows.row0, matrix.cols, xs, y, rows.row0)
    else:
        matmul_bands(rows.form, rows.address, rows.row1 - rows.row0, xs, y, rows.row0)


def decoded_rows(matrix: Matrix, granule: int) -> int:
    """How many rows `stored` decodes at a time: whole granules and whole bands, about DECODED_BYTES."""
    step = int(np.lcm(granule, BAND_ROWS))
    wanted = DECODED_BYTES // row_bytes(matrix.format, matrix.cols) // step * step
    return min(max(step, wanted), -(-matrix.rows // step) * step)


def _place(matrix: Matrix, rows: Rows) -> tuple[int, int]:
    """(row, column) of the first weight that is not finite, or (-1, -1)."""
    count = rows.row1 - rows.row0
    if rows.form is None:
        row, col = find_nonfinite(matrix.format, rows.address, 0, count, matrix.cols)
    else:
        row, col = find_nonfinite_bands(rows.form, rows.address, count)
    return (row + rows.row0 if row >= 0 else -1), col


def decoded_bytes(config: ModelConfig, score: Score) -> int:
    """Memory that `stored` takes for the bands of this tape."""
    heads = [matrices["kv_b_proj"] for matrices in score.layers if "kv_b_proj" in matrices]
    together = granule_of(config, "kv_b_proj")
    return max(
        (decoded_rows(matrix, together) * row_bytes(matrix.format, matrix.cols) for matrix in heads),
        default=0,
    )
