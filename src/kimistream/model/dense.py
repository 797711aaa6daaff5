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

from kimistream.checkpoint.pack_format import BAND_ROWS
from kimistream.checkpoint.table import Checkpoint
from kimistream.errors import NumberError
from kimistream.kernels.bands import BandForm, find_nonfinite_bands, matmul_bands
from kimistream.kernels.matrix import all_finite, find_nonfinite, matmul
from kimistream.model.order import Matrix, Run
from kimistream.stream.tape import Part, Tape

Floats = npt.NDArray[np.float32]


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

    def __call__(self, matrix: Matrix, xs: Floats, y: Floats) -> Floats:
        """Fill y `[T, rows]` with the product of the matrix and xs `[T, padded(cols)]` (split rows).

        Raises NumberError naming the tensor when a result is NaN or infinite: with finite x that
        happens exactly when a weight is, or when a sum overflows.
        """
        for rows in self.rows(matrix):
            multiply(matrix, rows, xs, y)
            if not all_finite(y, rows.row0, rows.row1):
                raise self.trace(matrix, rows)
        return y

    def rows(self, matrix: Matrix) -> Iterator[Rows]:
        """The rows of a matrix in order, as they come; each valid until the next are asked for."""
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


def _place(matrix: Matrix, rows: Rows) -> tuple[int, int]:
    """(row, column) of the first weight that is not finite, or (-1, -1)."""
    count = rows.row1 - rows.row0
    if rows.form is None:
        row, col = find_nonfinite(matrix.format, rows.address, 0, count, matrix.cols)
    else:
        row, col = find_nonfinite_bands(rows.form, rows.address, count)
    return (row + rows.row0 if row >= 0 else -1), col
