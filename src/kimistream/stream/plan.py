"""The plan: where every byte of the memory budget goes, before anything is allocated.

Knows: what each part needs, in bytes, the order in which more memory is spent, and subtraction.
Does not know: why a part needs what it needs, or how to measure anything.

More memory is spent strictly in this order, each step filled before the next begins, so that a larger budget
never has fewer of anything that reading costs: the least of everything; rows of a prompt's pass; expert slots
and ring buffers up to what keeps the disk busy; pinned blocks; when every block is pinned (the ring is then
given back), the expert cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kimistream.budget import format_size
from kimistream.errors import BudgetError
from kimistream.stream.defaults import (
    ALIGNMENT,
    BLOCK_BYTES,
    EXPERT_SLOTS,
    GUESSES,
    RESIDENT_BLOCK_BYTES,
    RING_BLOCKS,
)


@dataclass(frozen=True)
class Needs:
    """What must be held, in bytes where nothing else is said.

    spans: memory of each block of the tape (`Blocks.spans`). slot_bytes: memory of one expert. experts: how
    many experts there are in all (no more slots than that). least_slots and want_slots: see defaults.
    row_bytes: activations of one row of a pass; least_rows and want_rows: rows of a pass. fixed: further
    named parts, each (label, bytes).
    """

    runtime: int
    table: int
    vectors: int
    states: int
    latents: int
    logits: int
    row_bytes: int
    spans: Sequence[int] | NDArray[np.int64]
    slot_bytes: int = 0
    experts: int = 0
    least_rows: int = 1
    want_rows: int = 1
    least_slots: int = EXPERT_SLOTS
    want_slots: int = EXPERT_SLOTS
    least_ring: int = RING_BLOCKS
    want_ring: int = RING_BLOCKS
    guesses: int = GUESSES
    fixed: tuple[tuple[str, int], ...] = ()

    @property
    def always(self) -> int:
        """Bytes that no choice changes."""
        named = sum(nbytes for _, nbytes in self.fixed)
        return self.runtime + self.table + self.vectors + self.states + self.latents + self.logits + named


@dataclass(frozen=True)
class Plan:
    """What the engine allocates, exactly.

    `rows` rows of activations, `ring` buffers of `capacity` bytes, the blocks `pinned`, `slots` expert slots.
    `reserve` is kept free for page tables and what cannot be planned.
    """

    needs: Needs
    budget: int
    least: int
    rows: int
    ring: int
    capacity: int
    pinned: tuple[int, ...]
    pinned_bytes: int
    slots: int
    reserve: int

    @property
    def cache_slots(self) -> int:
        """Slots beyond those that keep the disk busy."""
        return max(0, self.slots - min(self.needs.want_slots, self.needs.experts))

    @property
    def guesses(self) -> int:
        """Slots that reads ahead of the router may take: only of the cache, and none when every expert fits."""
        return min(self.needs.guesses, self.cache_slots // 2) if self.slots < self.needs.experts else 0

    @property
    def resident(self) -> bool:
        """The whole tape is in memory."""
        return len(self.pinned) == len(self.needs.spans)

    @property
    def used(self) -> int:
        """Bytes given to something; at most the budget."""
        return (
            self.needs.always
            + self.reserve
            + self.rows * self.needs.row_bytes
            + self.ring * self.capacity
            + self.pinned_bytes
            + self.slots * self.needs.slot_bytes
        )

    @property
    def tape_bytes(self) -> int:
        """Memory-size of the blocks that every pass reads (with its head)."""
        return int(np.sum(self.needs.spans)) - self.pinned_bytes

    def table(self) -> list[tuple[str, int, str]]:
        """(part, bytes, remark) for printing; the bytes add up to `used`."""
        needs = self.needs
        blocks = len(needs.spans)
        rows = [
            ("runtime", needs.runtime, "interpreter, libraries, compiled kernels"),
            ("table", needs.table, "where every tensor lies"),
            ("vectors", needs.vectors, "norms, biases, convolutions"),
            ("states", needs.states, "KDA states and convolution tails"),
            ("latents", needs.latents, "MLA cache"),
            ("logits", needs.logits, ""),
            *((label, nbytes, "") for label, nbytes in needs.fixed),
            ("activations", self.rows * needs.row_bytes, f"{self.rows} rows a pass"),
            ("ring", self.ring * self.capacity, f"{self.ring} buffers of {format_size(self.capacity)}"),
            (
                "expert slots",
                (self.slots - self.cache_slots) * needs.slot_bytes,
                f"{self.slots - self.cache_slots}",
            ),
            ("pinned blocks", self.pinned_bytes, f"{len(self.pinned)} of {blocks} blocks of the tape"),
            (
                "expert cache",
                self.cache_slots * needs.slot_bytes,
                f"{self.cache_slots} of {needs.experts} experts",
            ),
            ("reserve", self.reserve, "page tables, what cannot be planned"),
        ]
        return [row for row in rows if row[1]]


def reserve_for(budget: int) -> int:
    """What stays unplanned: 24 MiB and half a percent of the budget (page tables take 0.2 %)."""
    return (24 << 20) + budget // 200


def make_plan(needs: Needs, budget: int) -> Plan:
    """Spend `budget` bytes. Raises BudgetError (with the least that works) when it is too small."""
    spans = np.asarray(needs.spans, dtype=np.int64)
    least = least_budget(needs)
    if budget < least:
        raise BudgetError(
            f"the memory budget is {format_size(budget)} ({budget:,} bytes); this model with these options "
            f"needs at least {format_size(least)} ({least:,} bytes)",
            f"Give at least `--memory {_rounded_up(least)}`, or a shorter `--context`.",
            least_bytes=least,
        )
    tape = int(spans.sum())
    capacity = int(spans.max()) if len(spans) else 0
    reserve = reserve_for(budget)
    least_ring, want_ring = _ring_bounds(needs, spans)
    least_slots, want_slots = _slot_bounds(needs)
    resident = least_ring == 0
    left = budget - needs.always - reserve - (tape if resident else least_ring * capacity)
    left -= needs.least_rows * needs.row_bytes + least_slots * needs.slot_bytes
    everything = tuple(range(len(spans)))

    def spend(have: int, want: int, price: int) -> int:
        """Up to `want` of what costs `price` each, out of `left`."""
        nonlocal left
        more = max(0, min(want - have, left // price if price else want))
        left -= more * price
        return int(have + more)

    rows = spend(needs.least_rows, needs.want_rows, needs.row_bytes)
    slots, ring, pinned = least_slots, least_ring, everything if resident else ()
    if rows >= needs.want_rows:
        slots = spend(slots, want_slots, needs.slot_bytes)
    if rows >= needs.want_rows and slots >= want_slots:
        if not resident and tape <= left + ring * capacity:  # it fits once the ring is given back
            left += ring * capacity - tape
            ring, pinned, resident = 0, everything, True
        if resident:
            slots = spend(slots, max(slots, needs.experts), needs.slot_bytes)
        else:
            ring = spend(ring, want_ring, capacity)
            pinned = spread_within(spans, left) if ring >= want_ring else ()
    return Plan(
        needs=needs,
        budget=budget,
        least=least,
        rows=rows,
        ring=ring,
        capacity=capacity if ring else 0,
        pinned=pinned,
        pinned_bytes=int(spans[list(pinned)].sum()) if pinned else 0,
        slots=slots,
        reserve=reserve,
    )


def least_budget(needs: Needs) -> int:
    """The smallest budget `make_plan` accepts."""
    spans = np.asarray(needs.spans, dtype=np.int64)
    ring = _ring_bounds(needs, spans)[0]
    planned = needs.always + needs.least_rows * needs.row_bytes
    planned += ring * int(spans.max()) if ring else int(spans.sum())
    planned += _slot_bounds(needs)[0] * needs.slot_bytes
    budget = planned + reserve_for(planned)
    while budget - reserve_for(budget) < planned:
        budget += planned - (budget - reserve_for(budget))
    return budget


def spread(count: int, chosen: int) -> NDArray[np.int64]:
    """`chosen` of `count` indices, as evenly along them as whole numbers allow, ascending."""
    index = np.arange(count, dtype=np.int64)
    return np.flatnonzero((index + 1) * chosen // count > index * chosen // count) if count else index


def spread_within(spans: NDArray[np.int64], nbytes: int) -> tuple[int, ...]:
    """The most blocks, spread evenly, whose spans fit in `nbytes`. More bytes, never fewer blocks."""
    count = len(spans)
    if nbytes <= 0 or not count:
        return ()
    # As many as the smallest would allow is a bound to start from; then down to what fits.
    most = int(np.searchsorted(np.cumsum(np.sort(spans)), nbytes, side="right"))
    for chosen in range(most, 0, -1):
        picked = spread(count, chosen)
        if int(spans[picked].sum()) <= nbytes:
            return tuple(picked.tolist())
    return ()


def block_bytes_for(tape_bytes: int, spare: int = 0) -> int:
    """A block size for a tape when `spare` bytes are there for it.

    Large blocks when all of it will be resident (fewer, larger pieces of work); else the measured default,
    smaller for a small tape so that it still has 64 blocks.
    """
    if tape_bytes + tape_bytes // 50 <= spare:
        return RESIDENT_BLOCK_BYTES
    return min(BLOCK_BYTES, max(ALIGNMENT, tape_bytes // 64)) // ALIGNMENT * ALIGNMENT


def _ring_bounds(needs: Needs, spans: NDArray[np.int64]) -> tuple[int, int]:
    """(least, wanted) buffers; (0, 0) for a tape that takes no more memory than the least ring."""
    if not len(spans) or int(spans.sum()) <= needs.least_ring * int(spans.max()):
        return 0, 0
    return needs.least_ring, max(needs.least_ring, min(needs.want_ring, len(spans)))


def _slot_bounds(needs: Needs) -> tuple[int, int]:
    least = min(needs.least_slots, needs.experts)
    return least, max(least, min(needs.want_slots, needs.experts))


def _rounded_up(nbytes: int) -> str:
    """A size to type that is not below `nbytes`."""
    unit, name = (10**7, "GB") if nbytes >= 10**9 else (10**6, "MB")
    steps = -(-nbytes // unit)
    return f"{steps / 100:.2f}GB" if name == "GB" else f"{steps}MB"
