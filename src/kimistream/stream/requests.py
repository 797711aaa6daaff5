"""Reads as data: priorities, tickets, extents, and the queues of one drive.

Knows: what is asked for and how much of it is still to come.
Does not know: threads' work, files, or why anything is read.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from kimistream.errors import ReadError
from kimistream.stream.files import DirectFile

# Priorities, and what a read is counted as.
EXPERT, TAPE, SPECULATIVE = 0, 1, 2
KIND_TAPE, KIND_EXPERT, KIND_SPECULATIVE, KIND_OTHER = 0, 1, 2, 3

# Who asks; and why a source has nothing queued (see `Reader.wants`).
TAPE_SOURCE, EXPERT_SOURCE, OTHER_SOURCE = 0, 1, 2
NOTHING, FULL, HUNGRY = 0, 1, 2
SOURCE_OF_KIND = (TAPE_SOURCE, EXPERT_SOURCE, EXPERT_SOURCE, OTHER_SOURCE)


class Ticket:
    """The completion of one `submit`. Waited for by one thread at a time."""

    __slots__ = ("_lock", "_waiter", "arrived", "cancelled", "done", "error", "kind", "remaining", "tag")

    def __init__(
        self, lock: threading.Lock, kind: int, arrived: Callable[[Ticket], None] | None, tag: Any
    ) -> None:
        self._lock = lock
        self._waiter: threading.Lock | None = None
        self.arrived = arrived
        self.kind = kind
        self.tag = tag
        self.remaining = 0
        self.done = False
        self.cancelled = False
        self.error: ReadError | None = None

    def wait(self) -> float:
        """Block until every byte is there; returns the seconds waited. Raises the `ReadError` met, if any."""
        waited = 0.0
        if not self.done:
            started = time.perf_counter()
            waiter = threading.Lock()
            waiter.acquire()
            with self._lock:
                if not self.done:
                    self._waiter = waiter
                else:
                    waiter.release()
            waiter.acquire()
            waited = time.perf_counter() - started
        if self.error is not None:
            raise self.error
        return waited

    def finish(self) -> None:  # with the lock held
        self.done = True
        if self._waiter is not None:
            self._waiter.release()
            self._waiter = None
        if self.arrived is not None:
            self.arrived(self)


class Extent:
    __slots__ = ("cursor", "dest", "drive", "file", "need", "piece", "start", "ticket")

    def __init__(
        self,
        file: DirectFile,
        drive: Drive,
        start: int,
        dest: memoryview,
        need: int,
        piece: int,
        ticket: Ticket,
    ) -> None:
        self.file = file
        self.drive = drive
        self.start = start
        self.dest = dest
        self.need = need  # bytes of dest that must come; the rest is widening and may lie beyond the file
        self.piece = piece
        self.cursor = 0
        self.ticket = ticket

    def pieces_left(self) -> int:
        return -(-(len(self.dest) - self.cursor) // self.piece)


class Drive:
    """The queues of one drive and the threads that wait for them. Everything under the reader's lock.

    A waiting thread sleeps on a lock of its own, listed in `idle` until it runs again. Waking only releases
    such a lock, so that a KeyboardInterrupt at any point of it loses nothing (a Condition can lose a wake-up
    that way); and a thread that takes a piece while more are queued wakes the next.
    """

    __slots__ = ("idle", "queues", "speculative_in_flight", "speculative_limit", "threads")

    def __init__(self, speculative_limit: int) -> None:
        self.queues: list[deque[Extent]] = [deque(), deque(), deque()]
        self.threads: list[threading.Thread] = []
        self.idle: list[threading.Lock] = []
        self.speculative_in_flight = 0
        self.speculative_limit = speculative_limit

    def next(self) -> Extent | None:
        """What to read next: the first of the highest priority."""
        experts, tape, speculative = self.queues
        if experts:
            return experts[0]
        if tape:
            return tape[0]
        if speculative and self.speculative_in_flight < self.speculative_limit:
            return speculative[0]
        return None

    def wake(self, count: int) -> None:
        """Let up to `count` waiting threads look at the queues."""
        for own in self.idle:
            if count <= 0:
                break
            if own.locked():
                own.release()
                count -= 1

    def drop(self, chosen: Callable[[Ticket], bool]) -> None:
        """Take the queued reads of the chosen tickets away; a ticket with nothing in flight either is done."""
        for level, queue in enumerate(self.queues):
            kept = deque(job for job in queue if not chosen(job.ticket))
            if len(kept) == len(queue):
                continue
            self.queues[level] = kept  # in one step: an interruption must not lose the reads of others
            for job in queue:
                if chosen(job.ticket):
                    job.ticket.cancelled = True
                    job.ticket.remaining -= job.pieces_left()
                    if job.ticket.remaining == 0:
                        job.ticket.finish()
