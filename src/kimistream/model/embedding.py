"""The embedding: rows gathered from disk when a pass needs them; the matrix itself is never resident.

Knows: where a token's row lies.
Does not know: what the rows are used for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.names import embedding_name
from kimistream.checkpoint.table import Checkpoint
from kimistream.errors import NumberError, UsageError
from kimistream.kernels.gather import widen
from kimistream.stream.reader import Reader

Floats = npt.NDArray[np.float32]


class Embedding:
    """Gathers embedding rows as float32."""

    def __init__(self, checkpoint: Checkpoint, reader: Reader) -> None:
        self._checkpoint = checkpoint
        self._ref = checkpoint.dense(embedding_name(checkpoint.config))
        self._vocab = checkpoint.config.vocab_size
        self._row_bytes = self._ref.nbytes // self._ref.shape[0]
        self._reader = reader

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
        seen: dict[int, int] = {}
        for t, token in enumerate(ids.tolist()):
            if token in seen:
                np.copyto(out[t], out[seen[token]])
                continue
            seen[token] = t
            self._read(token, out[t])

    def _read(self, token: int, row: Floats) -> None:
        offset = self._ref.offset + token * self._row_bytes
        stored = np.frombuffer(self._reader.read_now(self._ref.file, offset, self._row_bytes), np.uint8)
        widen(self._ref.format, stored.ctypes.data, len(row), row)
        if not np.isfinite(row).all():
            raise NumberError(
                f"tensor {self._ref.name} holds a NaN or an infinity in row {token} "
                f"(in {self._checkpoint.shard_of(self._ref.name)})",
                self._checkpoint.how_to_fetch(self._ref.name),
            )
