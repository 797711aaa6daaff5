"""The tape: the dense weights playing past once per pass, block by block, read ahead of the consumer.

Knows: the blocks in order, a ring of buffers, the pinned blocks and their memory, which block the consumer
is at, and how far ahead it may read.
Does not know: what the items are, who computes, or how reading works.

All methods belong to the one thread that computes; only the reader's threads fill memory. Order of a pass:
`begin`, then `take` of every item in ascending order (the head's items only when asked for), then `finish`.
A block's buffer goes back to the ring, and its next read is queued, when the consumer asks for a part in
another block, takes the next item, or calls `release` or `finish`.

Where bytes carry checksums, `check` looks at every part between its reading and its use: parts of ring blocks
each time, since they were read anew, parts of pinned blocks once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from kimistream.stream.arena import Arena
from kimistream.stream.blocks import Blocks
from kimistream.stream.reader import Reader
from kimistream.stream.requests import FULL, HUNGRY, KIND_TAPE, NOTHING, TAPE, TAPE_SOURCE, Ticket

# Pinned blocks being filled at once in a first pass. They have their own memory, so only the length of the
# queue is bounded.
_PINNED_AHEAD = 64

_EMPTY, _FILLING, _READY = 0, 1, 2


class Part(NamedTuple):
    """Rows `row0 : row1` of the taken item; `address` of the first byte of row0."""

    row0: int
    row1: int
    address: int


Check = Callable[[int, Part], None]
"""Called with an item and a part of it that was just read; raises when its bytes are wrong."""


class Tape:
    """`ring` buffers of the largest unpinned block's size, and the blocks in `pinned` resident for good.

    One tape per reader. `wait_seconds` is what `take` spent waiting for bytes; `touch` makes the memory
    resident beforehand. Errors of the disk come out of `take` as ReadError; after one, or after any other
    exception in the middle of a pass, call `abort` (or `begin`, which does it).

    check: looks at parts that were just read; what it raises comes out of `take`, and a pinned part that it
    refused is looked at again before it is handed out.
    """

    def __init__(
        self,
        reader: Reader,
        blocks: Blocks,
        ring: int,
        pinned: Iterable[int] = (),
        *,
        check: Check | None = None,
    ) -> None:
        self.reader = reader
        self.blocks = blocks
        count = len(blocks)
        chosen = sorted({int(b) for b in pinned})
        if chosen and not 0 <= chosen[0] <= chosen[-1] < count:
            raise RuntimeError(f"pinned blocks {chosen[0]}..{chosen[-1]} are not all within 0..{count - 1}")
        self._pinned_offset = [-1] * count
        offset = 0
        for block in chosen:
            self._pinned_offset[block] = offset
            offset += int(blocks.spans[block])
        free = np.array([o < 0 for o in self._pinned_offset], dtype=bool)
        if free.any() and ring < 1:
            raise RuntimeError("a tape with blocks that are not pinned needs a ring")
        self.capacity = int(blocks.spans[free].max()) if free.any() else 0
        self.ring = min(ring, int(free.sum()))
        self._ring_arena = Arena(self.ring * self.capacity) if self.ring else None
        self._pinned_arena = Arena(offset) if chosen else None
        self._pinned_state = bytearray(count)
        self._check = check
        self._checked = bytearray(len(blocks.parts))  # parts of pinned blocks that were found right
        self.wait_seconds = 0.0
        self.blocks_read = 0
        self._active = False
        self._fetch_ahead = False  # the fetch is already in the pass after this one
        self._reset()

    # ---------------------------------------------------------------- what callers use

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(arena.nbytes for arena in (self._ring_arena, self._pinned_arena) if arena is not None)

    def touch(
        self, threads: int = 4, *, pinned: bool = True, progress: Callable[[int], None] | None = None
    ) -> float:
        """First touch of the memory, before anything is read. Returns seconds. See `Arena.touch`."""
        seconds, done = 0.0, 0
        for arena in (self._ring_arena, self._pinned_arena if pinned else None):
            if arena is not None:
                seconds += arena.touch(threads, _after(done, progress))
                done += arena.nbytes
        return seconds

    def begin(self, head: bool, more: bool) -> None:
        """A pass starts. head: it wants the head's items too. more: another pass will follow this one."""
        if self._active:
            self.abort()
        self._active = True  # first: whatever interrupts us from here on, the next begin starts over
        self._limit = len(self.blocks) if head else self.blocks.head_block
        self._item_limit = len(self.blocks.items) if head else self.blocks.head_start
        self._more = more
        if self._fetch_ahead:
            self._fetch_ahead = False
        else:
            self._fetch_block = 0
        self._next_item = 0
        self._pump()

    def take(self, item: int) -> Iterator[Part]:
        """The parts of an item in row order. A part is valid until the next one is asked for.

        The last part stays valid until the next `take`, `release` or `finish`.
        """
        if not self._active or item != self._next_item or item >= self._item_limit:
            raise RuntimeError(f"item {item} was taken where item {self._next_item} is next on the tape")
        self._next_item = item + 1
        first, end = self.blocks.first_part[item : item + 2].tolist()
        return self._parts(first, end)

    def resident(self, item: int) -> list[Part] | None:
        """The parts of an item whose blocks are all pinned and filled, in row order; None otherwise.

        Looks, and moves nothing: the item can be taken before or after.
        """
        first, end = self.blocks.first_part[item : item + 2].tolist()
        parts = []
        for index in range(first, end):
            block = int(np.searchsorted(self.blocks.part_start, index, side="right")) - 1
            if self._pinned_state[block] != _READY or self._pinned_arena is None:
                return None
            if self._check is not None and not self._checked[index]:
                return None
            _, row0, row1, offset = self.blocks.parts[index].tolist()
            parts.append(Part(row0, row1, self._pinned_arena.address + self._pinned_offset[block] + offset))
        return parts

    def release(self) -> None:
        """The consumer is done with everything it has taken: let the block it stands on be read over.

        Only for a consumer that will not take another item of the same block: call it where a long
        computation without weights follows. When the next item begins in the same block, it stays.
        """
        if self._current >= 0 and self._next_item < len(self.blocks.items):
            first = int(self.blocks.first_part[self._next_item])
            if int(self.blocks.part_start[self._current + 1]) > first:
                return
        self._leave()
        self._pump()

    def finish(self) -> None:
        """The pass is over: every item was taken. Reading goes on when `more` was promised."""
        if self._active and self._next_item != self._item_limit:
            raise RuntimeError(f"the pass ended at item {self._next_item} of {self._item_limit}")
        self._leave()
        self._pump()
        self._active = False

    def abort(self) -> None:
        """Give up the pass wherever it stands. Filled pinned blocks stay; the rest is forgotten."""
        self.reader.drain(TAPE_SOURCE)
        self.reader.wants(TAPE_SOURCE, NOTHING)
        for block, state in enumerate(self._pinned_state):
            if state == _FILLING:
                ticket = self._filling.get(block)
                whole = ticket is not None and ticket.done and not ticket.cancelled and ticket.error is None
                self._pinned_state[block] = _READY if whole else _EMPTY
        self._reset()

    def close(self) -> None:
        """Stop reading and give the memory back."""
        self.abort()
        for arena in (self._ring_arena, self._pinned_arena):
            if arena is not None:
                arena.close()
        self._ring_arena = self._pinned_arena = None

    def __enter__(self) -> Tape:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------- inside

    def _reset(self) -> None:
        self._free = list(range(self.ring))
        self._ahead: deque[tuple[int, int, Ticket]] = deque()  # block, buffer, ticket: read or being read
        self._filling: dict[int, Ticket] = {}  # pinned blocks being read for the first time
        self._current = -1  # the block the consumer stands on, and its buffer (-1: pinned)
        self._current_buffer = -1
        self._current_address = 0
        self._fetch_block = 0
        self._fetch_ahead = False
        self._limit = self._item_limit = self._next_item = 0
        self._more = False
        self._active = False

    def _parts(self, first: int, end: int) -> Iterator[Part]:
        for index in range(first, end):
            item, row0, row1, offset = self.blocks.parts[index].tolist()
            # parts are numbered through the blocks: the next block begins at part_start[current + 1]
            if self._current < 0 or index >= self.blocks.part_start[self._current + 1]:
                self._enter(int(np.searchsorted(self.blocks.part_start, index, side="right")) - 1)
            part = Part(row0, row1, self._current_address + offset)
            if self._check is not None and not self._checked[index]:
                self._check(item, part)
                self._checked[index] = self._current_buffer < 0
            yield part

    def _enter(self, block: int) -> None:
        self._leave()
        self._pump()
        place = self._pinned_offset[block]
        if place >= 0:
            self._enter_pinned(block, place)
            return
        if not self._ahead or self._ahead[0][0] != block:
            raise RuntimeError(f"block {block} was entered out of order")
        _, buffer, ticket = self._ahead.popleft()
        self._current, self._current_buffer = block, buffer
        assert self._ring_arena is not None
        self._current_address = self._ring_arena.address + buffer * self.capacity
        if not ticket.done or ticket.error is not None:
            self.wait_seconds += ticket.wait()

    def _enter_pinned(self, block: int, place: int) -> None:
        assert self._pinned_arena is not None
        if self._pinned_state[block] != _READY:
            ticket = self._filling.get(block)
            if ticket is None:
                raise RuntimeError(f"pinned block {block} was entered out of order")
            self.wait_seconds += ticket.wait()
            self._pinned_state[block] = _READY
            del self._filling[block]
            self._pump()
        self._current = block
        self._current_address = self._pinned_arena.address + place

    def _leave(self) -> None:
        buffer, self._current_buffer, self._current = self._current_buffer, -1, -1
        if buffer >= 0:
            self._free.append(buffer)

    def _pump(self) -> None:
        """Queue every read there is room for."""
        while True:
            block = self._fetch_block
            if block >= (self.blocks.head_block if self._fetch_ahead else self._limit):
                if self._more and not self._fetch_ahead:
                    self._fetch_ahead, self._fetch_block = True, 0
                    continue
                self.reader.wants(TAPE_SOURCE, NOTHING)
                return
            place = self._pinned_offset[block]
            if place < 0:
                if not self._free:
                    self.reader.wants(TAPE_SOURCE, FULL)
                    return
                buffer = self._free.pop()
                assert self._ring_arena is not None
                ticket = self._submit(block, self._ring_arena, buffer * self.capacity)
                self._ahead.append((block, buffer, ticket))
            elif self._pinned_state[block] == _EMPTY:
                if len(self._filling) >= _PINNED_AHEAD:
                    self.reader.wants(TAPE_SOURCE, HUNGRY)
                    return
                assert self._pinned_arena is not None
                self._pinned_state[block] = _FILLING
                self._filling[block] = self._submit(block, self._pinned_arena, place)
            self._fetch_block = block + 1

    def _submit(self, block: int, arena: Arena, base: int) -> Ticket:
        blocks = self.blocks
        rows = blocks.extents[blocks.extent_start[block] : blocks.extent_start[block + 1]].tolist()
        align = blocks.alignment
        extents = [
            (file, start, need, arena.view(base + offset, -(-need // align) * align))
            for file, start, need, offset in rows
        ]
        self.blocks_read += 1
        return self.reader.submit(extents, TAPE, KIND_TAPE)


def _after(done: int, progress: Callable[[int], None] | None) -> Callable[[int], None] | None:
    """`progress` for the next of several arenas."""
    return None if progress is None else lambda nbytes: progress(done + nbytes)
