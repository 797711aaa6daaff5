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
    __slots__ = ("idle", "queues", "ready", "speculative_in_flight", "threads")

    def __init__(self, lock: threading.Lock) -> None:
        self.ready = threading.Condition(lock)
        self.queues: tuple[deque[Extent], ...] = (deque(), deque(), deque())
        self.threads: list[threading.Thread] = []
        self.idle = 0
        self.speculative_in_flight = 0
