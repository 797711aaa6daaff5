"""What the streaming layer counts: bytes by kind, seconds by cause.

Knows: the names of the counts and how to subtract two snapshots.
Does not know: who counts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class ReadCounters:
    """A snapshot of a reader. Bytes are those the operating system delivered, widening included."""

    tape_bytes: int = 0
    expert_bytes: int = 0
    speculative_bytes: int = 0
    """Expert bytes read on a guess (also counted nowhere else)."""
    other_bytes: int = 0
    requests: int = 0
    busy_seconds: float = 0.0
    """At least one read was in flight."""
    depth_seconds: float = 0.0
    """Integral of the number of reads in flight: divided by `busy_seconds` it is the mean queue depth."""
    ring_full_seconds: float = 0.0
    """Nothing in flight, tape bytes wanted, every buffer of the ring holding bytes not yet used."""
    slots_full_seconds: float = 0.0
    """Nothing in flight, experts wanted, every slot in use."""
    starved_seconds: float = 0.0
    """Nothing in flight though bytes were wanted and there was room for them: a fault of the scheduling."""

    @property
    def total_bytes(self) -> int:
        return self.tape_bytes + self.expert_bytes + self.speculative_bytes + self.other_bytes

    @property
    def empty_seconds(self) -> float:
        """Nothing in flight although bytes were still wanted, whatever the cause."""
        return self.ring_full_seconds + self.slots_full_seconds + self.starved_seconds

    @property
    def bytes_per_second(self) -> float:
        """The disk's rate while it was reading (0 before the first read)."""
        return self.total_bytes / self.busy_seconds if self.busy_seconds > 0 else 0.0

    def __sub__(self, earlier: ReadCounters) -> ReadCounters:
        return ReadCounters(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))
