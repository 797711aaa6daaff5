"""Multiplying rows by a matrix of the tape, part by part as its blocks arrive.

Knows: that a matrix comes in parts, and that a number which is not finite must be traced to its weight.
Does not know: what the matrix is for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kimistream.errors import NumberError
from kimistream.kernels.matrix import all_finite, find_nonfinite, matmul
from kimistream.model.order import Matrix
from kimistream.stream.tape import Tape

Floats = npt.NDArray[np.float32]


class Dense:
    """y = W x for the matrices of a tape, taken strictly in the tape's order."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def __call__(self, matrix: Matrix, xs: Floats, y: Floats) -> Floats:
        """Fill y `[T, rows]` with the product of the matrix and xs `[T, padded(cols)]` (split rows).

        Raises NumberError naming the tensor when a result is NaN or infinite: with finite x that
        happens exactly when a weight is, or when a sum overflows.
        """
        for part in self._tape.take(matrix.index):
            rows = part.row1 - part.row0
            matmul(matrix.format, part.address, 0, rows, matrix.cols, xs, y, part.row0)
            if not all_finite(y, part.row0, part.row1):
                at = find_nonfinite(matrix.format, part.address, 0, rows, matrix.cols)
                raise bad_number(matrix.name, at[0] + part.row0 if at[0] >= 0 else -1, at[1])
        return y


def bad_number(tensor: str, row: int, col: int) -> NumberError:
    """The error for a product that is not finite; row and col name the weight, or are -1."""
    if row >= 0:
        return NumberError(
            f"tensor {tensor} holds a NaN or an infinity at row {row}, column {col}",
            "The file is damaged or was converted wrongly: fetch the shard that holds it again.",
        )
    return NumberError(
        f"multiplying by tensor {tensor} gave a number that is not finite, although its weights are",
        "The weights are finite but far too large: this is not a checkpoint as it was released.",
    )
