"""What each token cost: seconds, bytes by kind, waits by cause, experts read and reused.

Knows: the difference between two readings of the stream's counters.
Does not know: how it is shown.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

from kimistream.stream.counters import Counters


@dataclass(frozen=True, slots=True)
class Cost:
    """What a stretch of work cost. Seconds are wall-clock; bytes are what was read from disk."""

    seconds: float = 0.0
    tape_bytes: int = 0
    expert_bytes: int = 0
    other_bytes: int = 0
    busy_seconds: float = 0.0
    """Seconds in which at least one read was under way."""
    tape_wait: float = 0.0
    expert_wait: float = 0.0
    starved_seconds: float = 0.0
    """Seconds in which nothing was being read although bytes were still wanted."""
    experts_read: int = 0
    experts_reused: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def nbytes(self) -> int:
        """Bytes read from disk, of every kind."""
        return self.tape_bytes + self.expert_bytes + self.other_bytes

    @property
    def wait(self) -> float:
        """Seconds in which computing stood still for the disk."""
        return self.tape_wait + self.expert_wait


class Meter:
    """Measures the cost of a stretch of work from the stream's running counters."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._seconds = time.perf_counter()
        self._last = counters.snapshot()

    def lap(self) -> Cost:
        """The cost since the last lap (or since the meter was made)."""
        seconds, now = time.perf_counter(), self._counters.snapshot()
        before, self._last = self._last, now
        spent, self._seconds = seconds - self._seconds, seconds
        return Cost(
            spent,
            now.tape_bytes - before.tape_bytes,
            now.expert_bytes - before.expert_bytes,
            now.other_bytes - before.other_bytes,
            now.busy_seconds - before.busy_seconds,
            now.tape_wait - before.tape_wait,
            now.expert_wait - before.expert_wait,
            now.starved_seconds - before.starved_seconds,
            now.experts_read - before.experts_read,
            now.experts_reused - before.experts_reused,
        )


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One generated token: its id, its place in the sequence (0-based), and what it cost.

    The cost of the first token includes the prompt's.
    """

    id: int
    position: int
    cost: Cost
    stop: bool = False
    """True for an end token that ended the generation; it is not part of the text."""
