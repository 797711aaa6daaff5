"""Groups of a pack on their way: read ahead, packed on all cores, written behind, noted once they are on the disk.

Knows: which group is where in memory, and that neighbours in the file share a page.
Does not know: why it is stopped, what a group is cut from (pack_cut), or when the file is whole (packing).
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import deque
from pathlib import Path
from typing import Protocol

from kimistream.checkpoint.pack_format import HEADER_BYTES, padded
from kimistream.engine.pack_cut import Cut, Stretch
from kimistream.engine.pack_state import Group, Journal, Made
from kimistream.errors import OutputError
from kimistream.kernels.bands import choose_form, encode_bands
from kimistream.stream.arena import Arena
from kimistream.stream.defaults import ALIGNMENT
from kimistream.stream.reader import Reader
from kimistream.stream.requests import KIND_TAPE, TAPE, TAPE_SOURCE, Ticket
from kimistream.stream.writer import Writer, Written, failed

SYNC_SECONDS = 1.0
"""What a kill costs at most."""


class Work(Protocol):
    """Who the pipeline works for."""

    partial: Path

    def check(self) -> None:
        """Raises Interrupted when the work shall stop."""

    def packed(self, nbytes: int, end: int) -> None:
        """So many more bytes of the checkpoint are packed; the file will reach to `end`."""


class Pipeline:
    """Groups from the shards through memory to the file."""

    def __init__(
        self,
        work: Work,
        cut: Cut,
        groups: list[Group],
        journal: Journal,
        reader: Reader,
        writer: Writer,
        arena_in: Arena,
        arena_out: Arena,
        depths: tuple[int, int],
    ) -> None:
        self.work, self.cut, self.groups = work, cut, groups
        self._journal, self._reader, self._writer = journal, reader, writer
        self._in, self._out = arena_in, arena_out
        self._slot_in, self._slot_out = cut.blocks.capacity, arena_out.nbytes // depths[1]
        self._depth_in, self._depth_out = depths
        self._first = len(groups)
        self._noted = len(groups)
        self._written: deque[tuple[int, Written]] = deque()  # behind which byte of the file, and whether
        self._on_drive = groups[-1].end if groups else HEADER_BYTES
        self._slots: list[Written | None] = [None] * depths[1]
        self._synced = time.monotonic()
        self.end = self._on_drive
        self.tail = self._read_tail()

    def run(self) -> None:
        count = len(self.cut)
        reads: deque[Ticket] = deque(
            self._ask(number) for number in range(self._first, min(self._first + self._depth_in, count))
        )
        place = self.cut.salt + self.cut.bands_before(self._first)
        try:
            for number in range(self._first, count):
                self.work.check()
                reads.popleft().wait()
                place = self._pack(number, place)
                if number + self._depth_in < count:
                    reads.append(self._ask(number + self._depth_in))
                self.work.packed(int(self.cut.blocks.nbytes[number]), self.end)
                if time.monotonic() - self._synced >= SYNC_SECONDS:
                    self.settle()
            for written in self._slots:
                if written is not None:
                    written.wait()
        finally:
            self._reader.cancel(reads)
            self._reader.drain(TAPE_SOURCE)

    def settle(self) -> None:
        """Note in the journal which groups are on the disk."""
        self._synced = time.monotonic()
        while self._written and self._written[0][1].done and self._written[0][1].error is None:
            self._on_drive = self._written.popleft()[0]
        done = self._noted
        while done < len(self.groups) and self.groups[done].end <= self._on_drive:
            done += 1
        if done > self._noted:
            self._writer.sync()
            self._journal.append(self.groups[self._noted : done])
            self._noted = done

    def settle_if_possible(self) -> None:
        """The same when the work ends early: what cannot be noted will be done again."""
        with contextlib.suppress(OutputError):
            self.settle()

    def _ask(self, number: int) -> Ticket:
        """Queue the reads of a group into its place in memory."""
        blocks, base = self.cut.blocks, number % self._depth_in * self._slot_in
        first, end = blocks.extent_start[number : number + 2].tolist()
        extents = [
            (file, start, need, self._in.view(base + offset, -(-need // ALIGNMENT) * ALIGNMENT))
            for file, start, need, offset in blocks.extents[first:end].tolist()
        ]
        return self._reader.submit(extents, TAPE, KIND_TAPE)

    def _pack(self, number: int, place: int) -> int:
        """Pack one group into memory and queue its write; the number of the next band."""
        slot = number % self._depth_out
        before = self._slots[slot]
        if before is not None:
            before.wait()
        source = number % self._depth_in * self._slot_in
        target = slot * self._slot_out
        view = self._out.view(target, self._slot_out)
        view[: len(self.tail)] = self.tail
        at, made = len(self.tail), []
        for stretch in self.cut.group(number):
            part = self._make(stretch, source + stretch.offset, target + at, place)
            made.append(part)
            at += part.nbytes
            place += stretch.bands
        base = self.end // ALIGNMENT * ALIGNMENT
        whole = at // ALIGNMENT * ALIGNMENT
        self.end = base + at
        written = self._writer.submit(base, view[:whole])
        self.tail = bytes(view[whole:at])
        self._slots[slot] = written
        self._written.append((base + whole, written))
        self.groups.append(Group(tuple(made), self.end))
        view.release()
        return place

    def _make(self, stretch: Stretch, source: int, target: int, place: int) -> Made:
        ref = stretch.ref
        if not stretch.rows:
            nbytes = padded(ref.nbytes)
            out = self._out.array(target, nbytes)
            out[: ref.nbytes] = self._in.array(source, ref.nbytes)
            out[ref.nbytes :] = 0
            return Made("", 0, nbytes, hashlib.sha256(out.tobytes()).hexdigest())
        address = self._in.address + source
        form = choose_form(ref.format, address, stretch.rows, stretch.cols)
        encode_bands(form, address, stretch.rows, self._out.address + target, place)
        return Made(form.fmt.name, form.escape_room, stretch.bands * form.nbytes)

    def _read_tail(self) -> bytes:
        """The bytes before `end` that share its page: the next write has them too."""
        base = self.end // ALIGNMENT * ALIGNMENT
        if base == self.end:
            return b""
        try:
            with self.work.partial.open("rb") as file:
                file.seek(base)
                return file.read(self.end - base)
        except OSError as error:
            raise failed(self.work.partial, error) from None
