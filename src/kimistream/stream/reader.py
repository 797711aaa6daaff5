"""The reader: threads that bring runs of file bytes into aligned memory, the urgent ones first.

Knows: which drive a file is on, priorities, the queue depth, and what it counted.
Does not know: how one read is done (files), what the bytes mean, or how memory is handed out.

One queue per drive (`st_dev`), each with its own threads. A queue holds *extents*; a thread cuts the next
piece of `request_bytes` off the first extent of the highest priority. So what is in flight is bounded by
threads x request_bytes, and a new expert read starts after one piece, not after everything queued.
A `Ticket` stands for the extents given in one `submit`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from kimistream.errors import ReadError
from kimistream.stream.counters import ReadCounters
from kimistream.stream.defaults import ALIGNMENT, MAX_REQUEST_BYTES, REQUEST_BYTES, THREADS_PER_DRIVE
from kimistream.stream.files import DirectFile, OpenFile, Pread, system_pread
from kimistream.stream.requests import (
    FULL,
    HUNGRY,
    KIND_OTHER,
    KIND_SPECULATIVE,
    NOTHING,
    SOURCE_OF_KIND,
    SPECULATIVE,
    Drive,
    Extent,
    Ticket,
)


class Reader:
    """Reads from `paths` (index = file number in every call).

    threads: queue depth per drive. request_bytes: size of one read of the operating system.
    direct: try `O_DIRECT` (macOS: `F_NOCACHE`). pread: replaceable for tests (signature of `os.preadv`).
    notice: called with one line when direct reading was refused; also appended to `notices`.
    Raises ShardError when a file cannot be opened.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        threads: int = THREADS_PER_DRIVE,
        request_bytes: int = REQUEST_BYTES,
        alignment: int = ALIGNMENT,
        direct: bool = True,
        pread: Pread | None = None,
        open_file: OpenFile = os.open,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        if alignment < 1 or alignment & (alignment - 1):
            raise RuntimeError(f"alignment {alignment} is not a power of two")
        self.alignment = alignment
        self.request_bytes = max(alignment, min(request_bytes, MAX_REQUEST_BYTES) // alignment * alignment)
        self.threads = max(1, threads)
        self.notices: list[str] = []
        self._notice = notice
        self._lock = threading.Lock()
        self._closed = False
        self._drives: dict[int, Drive] = {}
        self._files: list[DirectFile] = []
        # counters; all under the lock
        self._bytes = [0, 0, 0, 0]
        self._requests = 0
        self._in_flight = 0
        self._in_flight_of = [0, 0, 0]  # by source
        self._quiet: list[threading.Lock | None] = [None, None, None]  # who waits for a source to be quiet
        self._busy = 0.0
        self._depth = 0.0
        self._empty = [0.0, 0.0, 0.0]  # ring full, slots full, starved
        self._wants = [NOTHING, NOTHING]
        self._clock = time.perf_counter()
        try:
            for path in paths:
                file = DirectFile(
                    str(path),
                    direct=direct,
                    alignment=alignment,
                    pread=pread if pread is not None else system_pread,
                    open_file=open_file,
                    refused=self._refused,
                )
                self._files.append(file)
                if file.device not in self._drives:
                    self._drives[file.device] = Drive(speculative_limit=max(1, self.threads // 2))
        except BaseException:
            self._close_files()
            raise
        for number, drive in enumerate(self._drives.values()):
            for i in range(self.threads):
                thread = threading.Thread(
                    target=self._work, args=(drive,), name=f"kimistream-read-{number}.{i}", daemon=True
                )
                drive.threads.append(thread)
                thread.start()

    # ---------------------------------------------------------------- what callers use

    @property
    def drives(self) -> int:
        return len(self._drives)

    @property
    def direct(self) -> bool:
        """All files are read past the page cache."""
        return all(file.direct for file in self._files)

    def span(self, offset: int, nbytes: int) -> tuple[int, int, int]:
        """(aligned start, aligned byte count, lead): the bytes wanted begin `lead` bytes into the span."""
        return span(offset, nbytes, self.alignment)

    def submit(
        self,
        extents: Iterable[tuple[int, int, int, memoryview]],
        priority: int,
        kind: int,
        arrived: Callable[[Ticket], None] | None = None,
        tag: Any = None,
    ) -> Ticket:
        """Queue reads (file, aligned start, bytes needed from there, aligned destination).

        The destination covers the whole aligned span; only the needed bytes must exist in the file.
        `arrived` is called once, by a reader thread holding the reader's lock: it must be brief and must not
        call the reader.
        """
        ticket = Ticket(self._lock, kind, arrived, tag)
        jobs: list[Extent] = []
        if self._closed:
            ticket.error, ticket.done = _closed_error(), True
            return ticket
        for file, start, need, dest in extents:
            nbytes = len(dest)
            if start % self.alignment or need > nbytes or start < 0:
                raise RuntimeError(f"read of {need} bytes at {start} into {nbytes} is not an aligned span")
            if need <= 0:
                continue
            count = -(-nbytes // self.request_bytes)
            piece = _up(_up(nbytes, count) // count, self.alignment)
            source = self._files[file]
            job = Extent(source, self._drives[source.device], start, dest, need, piece, ticket)
            ticket.remaining += job.pieces_left()
            jobs.append(job)
        with self._lock:
            if self._closed:
                ticket.error = _closed_error()
                ticket.finish()
                return ticket
            if not jobs:
                ticket.finish()
                return ticket
            for job in jobs:
                drive = job.drive
                drive.queues[priority].append(job)
                if drive.idle:
                    drive.wake(job.pieces_left())
        return ticket

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """Drop what has not been started. A ticket is done when its reads in flight have ended."""
        chosen = {id(ticket) for ticket in tickets}
        with self._lock:
            for ticket in tickets:
                ticket.cancelled = ticket.cancelled or not ticket.done
            for drive in self._drives.values():
                drive.drop(lambda ticket: id(ticket) in chosen)

    def drain(self, source: int, timeout: float = 5.0) -> bool:
        """Drop all a source has queued and wait for its reads in flight: then its memory is its own.

        Needs no list of tickets: it also ends reads whose ticket was lost to a KeyboardInterrupt.
        Returns False when reads are still in flight after `timeout` seconds.
        """
        # A plain lock, not a Condition: its wait does not survive a KeyboardInterrupt at every point.
        waiter = threading.Lock()
        waiter.acquire()
        with self._lock:
            for drive in self._drives.values():
                drive.drop(lambda ticket: SOURCE_OF_KIND[ticket.kind] == source)
            if self._in_flight_of[source] == 0:
                return True
            self._quiet[source] = waiter
        return waiter.acquire(timeout=timeout)

    def promote(
        self, ticket: Ticket, priority: int, kind: int, arrived: Callable[[Ticket], None], tag: Any
    ) -> bool:
        """Turn a guess into a certain read: what is still queued of it moves to another priority.

        Returns True when it is already done (then `arrived` is not called).
        """
        with self._lock:
            if ticket.done:
                return True
            ticket.arrived, ticket.tag = arrived, tag
            for drive in self._drives.values():
                queue = drive.queues[SPECULATIVE]
                moved = [job for job in queue if job.ticket is ticket]
                for job in moved:
                    queue.remove(job)
                drive.queues[priority].extend(moved)
                drive.wake(len(moved))
            ticket.kind = kind
            return False

    def wants(self, source: int, state: int) -> None:
        """A source says why it has queued no more: NOTHING wanted, memory FULL, or HUNGRY (see counters)."""
        if self._wants[source] != state:
            with self._lock:
                self._advance()
                self._wants[source] = state

    def counters(self) -> ReadCounters:
        with self._lock:
            self._advance()
            tape, expert, speculative, other = self._bytes
            return ReadCounters(
                tape, expert, speculative, other, self._requests, self._busy, self._depth, *self._empty
            )

    def read_now(self, file: int, offset: int, nbytes: int) -> bytes:
        """Read some bytes at once in the calling thread (small things: embedding rows, vectors)."""
        buffer = bytearray(nbytes)
        if nbytes:
            self._files[file].read_buffered(offset, memoryview(buffer), nbytes)
        with self._lock:
            self._bytes[KIND_OTHER] += nbytes
            self._requests += 1
        return bytes(buffer)

    def close(self, timeout: float = 1.0) -> None:
        """Stop: queued reads fail, reads in flight end, threads and descriptors go."""
        with self._lock:
            first = not self._closed
            self._closed = True
            for drive in self._drives.values():
                if first:
                    for job in (job for queue in drive.queues for job in queue):
                        job.ticket.error = job.ticket.error or _closed_error()
                    drive.drop(lambda ticket: True)
                drive.wake(len(drive.idle))
        deadline = time.monotonic() + timeout
        alive = False
        for drive in self._drives.values():
            for thread in drive.threads:
                thread.join(max(0.0, deadline - time.monotonic()))
                alive = alive or thread.is_alive()
        if not alive:  # else a read hangs in the kernel: its descriptor must outlive it
            self._close_files()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refused(self, path: str) -> None:
        if not self.notices:
            self.notices.append(
                f"direct reading is refused for {path}: it goes through the page cache (same results)"
            )
            if self._notice is not None:
                self._notice(self.notices[0])

    def _close_files(self) -> None:
        for file in self._files:
            file.close()

    # ---------------------------------------------------------------- threads

    def _work(self, drive: Drive) -> None:
        own = threading.Lock()
        own.acquire()
        while True:
            with self._lock:
                if self._closed:
                    return
                piece = self._take(drive)
                if piece is None:
                    drive.idle.append(own)
            if piece is None:
                own.acquire()  # until woken
                with self._lock:
                    drive.idle.remove(own)
                continue
            while piece is not None:
                job, begin, end, speculative = piece
                got, failure = _read_piece(job, begin, end)
                with self._lock:
                    self._complete(drive, job, got, failure, speculative)
                    piece = None if self._closed else self._take(drive)
            del job  # keep no view of anybody's memory while idle

    def _take(self, drive: Drive) -> tuple[Extent, int, int, bool] | None:
        """Cut the next piece off the queues: (extent, its first and end byte, is a guess). Lock held."""
        job = drive.next()
        if job is None:
            return None
        begin = job.cursor
        job.cursor = end = min(begin + job.piece, len(job.dest))
        if end == len(job.dest):
            for queue in drive.queues:
                if queue and queue[0] is job:
                    queue.popleft()
                    break
        speculative = job.ticket.kind == KIND_SPECULATIVE
        self._advance()
        self._in_flight += 1
        self._in_flight_of[SOURCE_OF_KIND[job.ticket.kind]] += 1
        drive.speculative_in_flight += speculative
        if drive.idle and drive.next() is not None:
            drive.wake(1)
        return job, begin, end, speculative

    def _complete(
        self, drive: Drive, job: Extent, got: int, failure: ReadError | None, speculative: bool
    ) -> None:
        self._advance()
        ticket = job.ticket
        source = SOURCE_OF_KIND[ticket.kind]
        self._in_flight -= 1
        self._in_flight_of[source] -= 1
        drive.speculative_in_flight -= speculative
        waiter = self._quiet[source]
        if waiter is not None and self._in_flight_of[source] == 0:
            self._quiet[source] = None
            waiter.release()
        self._bytes[ticket.kind] += got
        self._requests += 1
        if failure is not None and ticket.error is None:
            ticket.error = failure
        ticket.remaining -= 1
        if ticket.remaining == 0:
            ticket.finish()

    def _advance(self) -> None:
        """Book the time since the last event (lock held)."""
        now = time.perf_counter()
        passed, self._clock = now - self._clock, now
        if self._in_flight:
            self._busy += passed
            self._depth += passed * self._in_flight
        else:
            tape, experts = self._wants
            if tape == FULL:
                self._empty[0] += passed
            elif experts == FULL:
                self._empty[1] += passed
            elif tape == HUNGRY or experts == HUNGRY:
                self._empty[2] += passed


def _read_piece(job: Extent, begin: int, end: int) -> tuple[int, ReadError | None]:
    need = min(end, job.need) - begin
    if need <= 0:  # a piece of pure widening
        return 0, None
    try:
        return job.file.read(job.start + begin, job.dest[begin:end], need), None
    except ReadError as error:
        return 0, error
    except BaseException as error:  # nothing may be lost in a thread
        return 0, ReadError(
            f"{job.file.path}: reading {need:,} bytes at {job.start + begin:,} failed: {error!r}",
            "This is a fault of the program: please report it.",
        )


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def span(offset: int, nbytes: int, alignment: int = ALIGNMENT) -> tuple[int, int, int]:
    """(aligned start, aligned byte count, lead) of the smallest span over `offset : offset + nbytes`."""
    start = offset // alignment * alignment
    end = -(-(offset + nbytes) // alignment) * alignment
    return start, end - start, offset - start


def _closed_error() -> ReadError:
    return ReadError("the reader was closed while reads were queued", "Open the model again.")
