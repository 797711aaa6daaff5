"""Where an expert's tensors lie in the files, and where they will lie in a slot.

Knows: six tensors that are one run of bytes, or are not, and the aligned bounds of direct reads.
Does not know: slots, reading, or which experts are wanted.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kimistream.stream.defaults import ALIGNMENT
from kimistream.stream.reader import span


class ExpertRuns(Protocol):
    """Where the experts of one layer lie (`checkpoint.experts.ExpertTable` is one)."""

    @property
    def offsets(self) -> NDArray[np.int64]:
        """i64[experts, 6]: file offsets of w1, w1 scale, w2, w2 scale, w3, w3 scale."""

    @property
    def files(self) -> NDArray[np.int16]:
        """i16[experts, 6]: their file numbers."""

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """Their bytes; 0 means absent (its address is given as 0)."""

    @property
    def contiguous(self) -> NDArray[np.bool_]:
        """bool[experts]: the six lie back to back in one file in this order: one read does."""


def slot_bytes(runs: ExpertRuns, alignment: int = ALIGNMENT) -> int:
    """Bytes of a slot that can hold any expert of this layer, with the room direct reads need."""
    if not len(runs.offsets):
        return 0
    sizes = np.array(runs.sizes, dtype=np.int64)

    def spans(offset: NDArray[np.int64], nbytes: NDArray[np.int64] | int) -> NDArray[np.int64]:
        return -(-(offset + nbytes) // alignment) * alignment - offset // alignment * alignment

    whole = spans(runs.offsets[:, 0], int(sizes.sum()))
    apart = np.where(sizes > 0, spans(runs.offsets, sizes), 0).sum(axis=1)
    return int(np.where(runs.contiguous, whole, apart).max())


def lay_out(
    runs: ExpertRuns, expert: int, alignment: int
) -> tuple[list[tuple[int, int, int, int, int]], list[int]]:
    """The reads of one expert and the place of its six tensors, as offsets in a slot.

    Reads: (file, aligned start, bytes needed from there, aligned bytes of room, place in the slot); one when
    the tensors are contiguous, else one each. Places: -1 for an absent tensor.
    """
    offsets, files = runs.offsets[expert].tolist(), runs.files[expert].tolist()
    places: list[int] = []
    if runs.contiguous[expert]:
        nbytes = sum(runs.sizes)
        start, room, lead = span(offsets[0], nbytes, alignment)
        at = lead
        for size in runs.sizes:
            places.append(at if size else -1)
            at += size
        return [(files[0], start, lead + nbytes, room, 0)], places
    reads: list[tuple[int, int, int, int, int]] = []
    base = 0
    for file, offset, size in zip(files, offsets, runs.sizes, strict=True):
        if not size:
            places.append(-1)
            continue
        start, room, lead = span(offset, size, alignment)
        reads.append((file, start, lead + size, room, base))
        places.append(base + lead)
        base += room
    return reads, places
