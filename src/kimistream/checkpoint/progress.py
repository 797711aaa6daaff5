"""How far a long piece of work on many files is: bytes, rate, time left, and what each file is doing.

Knows: counting, from any number of threads; a rate over the last seconds.
Does not know: how it is shown (cli), or what the work is.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

WINDOW = 20.0
"""Seconds over which the rate is taken."""


@dataclass(frozen=True, slots=True)
class FileProgress:
    """One file under work: `done` of `size` bytes; `phase` in a word or two ("fetching", "checking")."""

    name: str
    size: int
    done: int
    phase: str
    rate: float
    """Bytes per second of this file since its phase began."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of it at one moment. Bytes, bytes per second, seconds; `seconds_left` None while unknown."""

    files: int
    files_done: int
    nbytes: int
    done: int
    rate: float
    seconds_left: float | None
    elapsed: float
    active: tuple[FileProgress, ...]


class _File:
    __slots__ = ("counted", "done", "name", "phase", "received", "size", "started")

    def __init__(self, name: str, size: int, done: int) -> None:
        self.name, self.size, self.done = name, size, done
        self.phase = ""
        self.started = time.monotonic()
        self.received = 0
        self.counted = True


class Progress:
    """Files are announced with `begin`, move by `advance`, and leave with `end`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._files: dict[str, _File] = {}
        self._total_files = self._files_done = 0
        self._total = self._finished = self._moved = 0
        self._samples: deque[tuple[float, int]] = deque([(self._started, 0)])

    def expect(self, files: int, nbytes: int) -> None:
        """How much there is in all, what is finished already included."""
        with self._lock:
            self._total_files, self._total = files, nbytes

    def clear(self) -> None:
        """Count files and bytes from zero again (the rate goes on)."""
        with self._lock:
            self._total_files = self._files_done = self._total = self._finished = 0

    def already(self, nbytes: int) -> None:
        """A file that needs no work."""
        with self._lock:
            self._files_done += 1
            self._finished += nbytes

    def begin(self, name: str, size: int, done: int, phase: str, *, counted: bool = True) -> None:
        """A file goes into a phase with `done` of its bytes behind it.

        counted: the phase's bytes are those of the total; a second look at bytes counted before is not, and
        the file then stands at its full size in the total.
        """
        with self._lock:
            file = self._files[name] = _File(name, size, done)
            file.phase, file.counted = phase, counted

    def phase(self, name: str, phase: str) -> None:
        with self._lock:
            file = self._files[name]
            file.phase, file.started, file.received = phase, time.monotonic(), 0

    def advance(self, name: str, nbytes: int) -> None:
        with self._lock:
            file = self._files[name]
            file.done += nbytes
            file.received += nbytes
            if file.counted:
                self._moved += nbytes

    def end(self, name: str, *, whole: bool) -> None:
        """The file is finished (`whole`), or given up: then its bytes count no longer."""
        with self._lock:
            file = self._files.pop(name, None)
            if whole and file is not None:
                self._files_done += 1
                self._finished += file.size

    def snapshot(self) -> Snapshot:
        now = time.monotonic()
        with self._lock:
            self._samples.append((now, self._moved))
            while len(self._samples) > 2 and now - self._samples[0][0] > WINDOW:
                self._samples.popleft()
            then, moved = self._samples[0]
            rate = (self._moved - moved) / (now - then) if now - then > 0.5 else 0.0
            done = self._finished + sum(f.done if f.counted else f.size for f in self._files.values())
            left = (self._total - done) / rate if rate > 0 else None
            active = tuple(
                FileProgress(f.name, f.size, f.done, f.phase, f.received / max(now - f.started, 0.5))
                for f in self._files.values()
            )
            return Snapshot(
                self._total_files,
                self._files_done,
                self._total,
                done,
                rate,
                left,
                now - self._started,
                active,
            )
