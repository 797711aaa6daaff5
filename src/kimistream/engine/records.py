"""What each token cost: seconds, bytes by kind, waits by cause, experts read and reused.

Knows: the difference between two readings of the stream's counters.
Does not know: how it is shown.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace

from kimistream.stream.expert_store import ExpertStore
from kimistream.stream.reader import Reader
from kimistream.stream.tape import Tape


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
    """Seconds in which nothing was being read although bytes were wanted and there was room for them."""
    ring_full_seconds: float = 0.0
    """Seconds in which nothing was being read because every buffer of the ring held unused bytes."""
    slots_full_seconds: float = 0.0
    """Seconds in which nothing was being read because every expert slot was in use."""
    experts_read: int = 0
    experts_reused: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    @property
    def nbytes(self) -> int:
        """Bytes read from disk, of every kind."""
        return self.tape_bytes + self.expert_bytes + self.other_bytes

    @property
    def wait(self) -> float:
        """Seconds in which computing stood still for the disk."""
        return self.tape_wait + self.expert_wait


class Meter:
    """Measures the cost of stretches of work from the running counters of a stream."""

    def __init__(self, reader: Reader, tape: Tape, experts: ExpertStore | None) -> None:
        self._reader, self._tape, self._experts = reader, tape, experts
        self._last = self._now()

    def _now(self) -> Cost:
        read = self._reader.counters()
        cost = Cost(
            seconds=time.perf_counter(),
            tape_bytes=read.tape_bytes,
            expert_bytes=read.expert_bytes + read.speculative_bytes,
            other_bytes=read.other_bytes,
            busy_seconds=read.busy_seconds,
            starved_seconds=read.starved_seconds,
            ring_full_seconds=read.ring_full_seconds,
            slots_full_seconds=read.slots_full_seconds,
            tape_wait=self._tape.wait_seconds,
        )
        if self._experts is None:
            return cost
        counters = self._experts.counters
        return replace(
            cost,
            expert_wait=counters.wait_seconds,
            experts_read=counters.read,
            experts_reused=counters.reused + counters.guessed_right,
        )

    def lap(self) -> Cost:
        """The cost since the last lap (or since the meter was made)."""
        now = self._now()
        cost, self._last = now - self._last, now
        return cost

    def peek(self) -> Cost:
        """The cost since the last lap, without starting a new one."""
        return self._now() - self._last


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
