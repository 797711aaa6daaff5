"""The tape cut into blocks: which bytes of which file make up each block, and where each matrix row lands.

Knows: items (runs of equal rows in a file) in the order of use, and arithmetic.
Does not know: memory, reading, what the rows are.

A block is a run of whole rows of one or several consecutive items. Bytes that are adjacent in a file are
one *extent* and one read; each extent has its own aligned area in the block, because direct reads start on
aligned bounds. A block's *span* is the sum of these areas. Kept as arrays: the full model has 14,000 blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kimistream.stream.defaults import ALIGNMENT
from kimistream.stream.reader import span


@dataclass(frozen=True, slots=True)
class TapeItem:
    """`rows` x `row_bytes` bytes of `file` from `offset` on; cut only at multiples of `granule` rows.

    multiple: where it fits, cut at multiples of so many rows, which keeps the kernels' groups of rows whole.
    """

    name: str
    file: int
    offset: int
    rows: int
    row_bytes: int
    granule: int = 1
    multiple: int = 16

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes


class Blocks:
    """The cut. Block b has parts `part_start[b] : part_start[b + 1]` and extents likewise.

    parts i64[n, 4]: item, first row, end row, offset in the block. extents i64[m, 4]: file, aligned file
    offset, bytes needed from there, offset in the block. spans i64[blocks]: bytes of memory of each block
    (aligned). nbytes i64[blocks]: wanted bytes. first_part i64[items + 1]: the parts of each item.
    head_block: the first block of the head's items (= number of blocks when there is no head).
    """

    def __init__(
        self,
        items: Sequence[TapeItem],
        block_bytes: int,
        *,
        head_start: int | None = None,
        alignment: int = ALIGNMENT,
    ) -> None:
        self.items = tuple(items)
        self.alignment = alignment
        self.block_bytes = max(alignment, block_bytes // alignment * alignment)
        self.head_start = len(self.items) if head_start is None else head_start
        cutter = _Cutter(self.items, self.block_bytes, self.head_start, alignment)
        cutter.run()
        self.parts = np.array(cutter.parts, dtype=np.int64).reshape(-1, 4)
        self.part_start = np.array(cutter.part_start, dtype=np.int64)
        self.extents = np.array(cutter.extents, dtype=np.int64).reshape(-1, 4)
        self.extent_start = np.array(cutter.extent_start, dtype=np.int64)
        self.spans = np.array(cutter.spans, dtype=np.int64)
        self.nbytes = np.array(cutter.nbytes, dtype=np.int64)
        self.first_part = np.searchsorted(self.parts[:, 0], np.arange(len(self.items) + 1)).astype(np.int64)
        self.head_block = cutter.head_block

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def capacity(self) -> int:
        """Bytes of the largest block: the size of a ring buffer."""
        return int(self.spans.max()) if len(self.spans) else 0

    @property
    def total_bytes(self) -> int:
        """Wanted bytes of the whole tape."""
        return int(self.nbytes.sum())


class _Cutter:
    """One walk over the items, filling one block after the other."""

    def __init__(self, items: Sequence[TapeItem], block_bytes: int, head_start: int, alignment: int) -> None:
        self.items = items
        self.block_bytes = block_bytes
        self.head_start = head_start
        self.alignment = alignment
        self.parts: list[tuple[int, int, int, int]] = []
        self.part_start = [0]
        self.extents: list[tuple[int, int, int, int]] = []
        self.extent_start = [0]
        self.spans: list[int] = []
        self.nbytes: list[int] = []
        self.head_block = -1
        # the open extent of the open block: file, wanted first and end byte; and the block's closed extents
        self.file = -1
        self.begin = self.end = 0
        self.closed_span = 0
        self.wanted = 0

    def run(self) -> None:
        for index, item in enumerate(self.items):
            if item.rows <= 0 or item.row_bytes <= 0 or item.granule <= 0 or item.offset < 0:
                raise RuntimeError(f"tape item {item.name} is empty or misplaced: {item}")
            if index == self.head_start:
                self._close_block()
                self.head_block = len(self.spans)
            self._place(index, item)
        self._close_block()
        if self.head_block < 0:
            self.head_block = len(self.spans)

    def _place(self, index: int, item: TapeItem) -> None:
        row = 0
        while row < item.rows:
            offset = item.offset + row * item.row_bytes
            rows = self._rows_that_fit(item, row, offset)
            if rows == 0 and self.wanted:
                self._close_block()
                rows = self._rows_that_fit(item, row, offset)
            if rows == 0:  # a granule larger than a block makes a larger block
                rows = min(item.granule, item.rows - row)
            self._add(index, item, row, rows, offset)
            row += rows
            if row < item.rows:
                self._close_block()

    def _rows_that_fit(self, item: TapeItem, row: int, offset: int) -> int:
        joins = self.wanted and self.file == item.file and self.end == offset
        begin = self.begin if joins else offset
        base = self.closed_span if joins else self.closed_span + self._open_span()
        aligned_begin = begin // self.alignment * self.alignment
        room = (
            self.block_bytes - base - (offset - aligned_begin)
        )  # both ends are aligned: the end may use it all
        left = item.rows - row
        rows = min(left, max(0, room) // item.row_bytes)
        if rows == left:
            return rows
        # Not all fit. A sliver of a large item at the end of a block costs more than the room it uses.
        if self.wanted and rows * item.row_bytes < self.block_bytes // 8:
            return 0
        for multiple in (math.lcm(item.granule, item.multiple), item.granule):
            cut = (row + rows) // multiple * multiple - row
            if cut > 0:
                return cut
        return 0

    def _add(self, index: int, item: TapeItem, row: int, rows: int, offset: int) -> None:
        if not (self.wanted and self.file == item.file and self.end == offset):
            self._close_extent()
            self.file, self.begin, self.end = item.file, offset, offset
        start = self.begin // self.alignment * self.alignment
        self.parts.append((index, row, row + rows, self.closed_span + offset - start))
        self.end = offset + rows * item.row_bytes
        self.wanted += rows * item.row_bytes

    def _open_span(self) -> int:
        if self.file < 0:
            return 0
        return span(self.begin, self.end - self.begin, self.alignment)[1]

    def _close_extent(self) -> None:
        if self.file < 0:
            return
        start, nbytes, lead = span(self.begin, self.end - self.begin, self.alignment)
        self.extents.append((self.file, start, lead + self.end - self.begin, self.closed_span))
        self.closed_span += nbytes
        self.file = -1

    def _close_block(self) -> None:
        if not self.wanted:
            return
        self._close_extent()
        self.part_start.append(len(self.parts))
        self.extent_start.append(len(self.extents))
        self.spans.append(self.closed_span)
        self.nbytes.append(self.wanted)
        self.closed_span = self.wanted = 0
