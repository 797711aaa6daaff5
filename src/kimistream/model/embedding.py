"""The embedding: rows gathered from disk when a pass needs them; the matrix itself is never resident.

Knows: where a token's row lies.
Does not know: what the rows are used for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.config import ModelConfig
from kimistream.checkpoint.names import embedding_name
from kimistream.checkpoint.table import Checkpoint
from kimistream.errors import NumberError, UsageError
from kimistream.kernels.gather import widen
from kimistream.stream.arena import Arena
from kimistream.stream.reader import Priority, Reader

Floats = npt.NDArray[np.float32]
_AT_ONCE = 32
"""Rows read together; bounds the buffer, whatever the pass's size."""


def embedding_bytes(checkpoint: Checkpoint, reader_span: int) -> int:
    """Bytes of the buffer for gathering."""
    ref = checkpoint.dense(embedding_name(checkpoint.config))
    return _AT_ONCE * (ref.nbytes // ref.shape[0] + reader_span)


class Embedding:
    """Gathers embedding rows as float32."""

    def __init__(self, checkpoint: Checkpoint, reader: Reader) -> None:
        config: ModelConfig = checkpoint.config
        self._ref = checkpoint.dense(embedding_name(config))
        self._vocab = config.vocab_size
        self._row_bytes = self._ref.nbytes // self._ref.shape[0]
        self._reader = reader
        _, self._stride, _ = reader.span(0, self._row_bytes + reader.alignment)
        self._arena = Arena(_AT_ONCE * self._stride)

    def gather(self, ids: npt.NDArray[np.int32], out: Floats) -> None:
        """out[t] = the row of ids[t], widened; out: float32 `[T, hidden]`.

        Raises UsageError for an id outside the vocabulary, NumberError for a row with NaN or infinity.
        """
        outside = (ids < 0) | (ids >= self._vocab)
        if outside.any():
            raise UsageError(
                f"token id {int(ids[outside][0])} is outside the vocabulary of {self._vocab} "
                f"(0 to {self._vocab - 1})",
                "Use the tokenizer of this checkpoint.",
            )
        unique, back = np.unique(ids, return_inverse=True)
        rows_of = [np.flatnonzero(back == i) for i in range(len(unique))]
        for first in range(0, len(unique), _AT_ONCE):
            self._gather(unique[first : first + _AT_ONCE], rows_of[first : first + _AT_ONCE], out)

    def _gather(
        self, ids: npt.NDArray[np.int32], rows_of: list[npt.NDArray[np.int64]], out: Floats
    ) -> None:
        tickets, leads = [], []
        for i, token in enumerate(ids):
            offset = self._ref.offset + int(token) * self._row_bytes
            start, length, lead = self._reader.span(offset, self._row_bytes)
            buffer = self._arena.view(i * self._stride, length)
            tickets.append(self._reader.submit(self._ref.file, start, length, buffer, Priority.EXPERT))
            leads.append(lead)
        for i, (token, rows) in enumerate(zip(ids, rows_of, strict=True)):
            self._reader.wait(tickets[i])
            row = out[rows[0]]
            widen(self._ref.format, self._arena.address + i * self._stride + leads[i], len(row), row)
            if not np.isfinite(row).all():
                raise NumberError(
                    f"tensor {self._ref.name} holds a NaN or an infinity in row {int(token)}",
                    "The file is damaged or was converted wrongly: fetch the shard that holds it again.",
                )
            for other in rows[1:]:
                np.copyto(out[other], row)

    def close(self) -> None:
        """Free the buffer."""
        self._arena.close()
