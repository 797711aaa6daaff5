"""The expert store: slots that experts are read into once a router has spoken, and kept in while it pays.

Knows: where each expert's tensors lie, the slots, which expert is in which, and the cache policy.
Does not know: routing weights, rows, or the order of sums.

`request` starts the reads at once, before the tape's; `arrivals` hands the experts over as they come, those
already in memory first. A union larger than the slots goes through in waves: a slot is free again, and the
next read starts, when the consumer comes back for the next batch. Nothing is thrown away early: every slot
that is not needed holds the last expert read into it, so slots beyond those in use are the expert cache.

All methods belong to the one thread that computes.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np
from numpy.typing import NDArray

from kimistream.stream.arena import Arena
from kimistream.stream.cache_policy import FadingMarks
from kimistream.stream.expert_runs import ExpertRuns, lay_out, slot_bytes
from kimistream.stream.reader import Reader
from kimistream.stream.requests import (
    EXPERT,
    EXPERT_SOURCE,
    FULL,
    KIND_EXPERT,
    KIND_SPECULATIVE,
    NOTHING,
    SPECULATIVE,
    Ticket,
)

Addresses = tuple[int, int, int, int, int, int]

LEAST_TRUST = 0.2
"""Below this share of right guesses reading ahead costs more than it brings (docs/LEARNED.md, "Stream")."""
_TRUST_STEP = 0.05
_LOOK_EVERY = 8

_FREE, _READING, _READY, _IN_USE, _GUESS, _DRAINING = range(6)


@dataclass(slots=True)
class ExpertCounters:
    """Experts read for a certain use, found in memory, read on a guess (and rightly so); seconds waited."""

    read: int = 0
    reused: int = 0
    guessed: int = 0
    guessed_right: int = 0
    wait_seconds: float = 0.0


class ExpertStore:
    """`slots` slots, of which at most `guesses` may be taken by reads ahead of the router.

    runs: layer number -> ExpertRuns. At least 2 slots are needed for reading to go on while computing.
    """

    def __init__(
        self, reader: Reader, runs: Mapping[int, ExpertRuns], slots: int, *, guesses: int = 0
    ) -> None:
        if slots < 1 or not runs:
            raise RuntimeError(f"an expert store needs layers and slots (got {len(runs)} and {slots})")
        self.reader = reader
        self.runs = dict(runs)
        self.slots = slots
        self.guesses = min(guesses, slots - 1)
        self.slot_bytes = max(slot_bytes(run, reader.alignment) for run in self.runs.values())
        self.counters = ExpertCounters()
        self._index = {layer: i for i, layer in enumerate(sorted(self.runs))}
        self._experts = max(len(run.offsets) for run in self.runs.values())
        self.policy = FadingMarks(len(self._index), self._experts)
        self._hits: list[tuple[int, int]] = []  # (index, slot) in memory, not yet handed over
        self._outstanding = 0  # reads queued or arrived, not yet handed over
        self._victims: list[int] = []  # slots to give up next, the least worth keeping last
        self._unfinished = False
        self._changing = False
        self._trust = 0.5  # the share of guesses that come true
        self._hints = 0
        self._arena: Arena | None = Arena(slots * self.slot_bytes)
        self._state = np.full(slots, _FREE, dtype=np.int8)
        self._key = np.full(slots, -1, dtype=np.int64)
        self._addresses: list[Addresses] = [(0, 0, 0, 0, 0, 0)] * slots
        self._slot_of: dict[int, int] = {}
        self._guess_tickets: dict[int, Ticket] = {}  # slot -> ticket, for _GUESS and _DRAINING
        self._start_over()

    # ---------------------------------------------------------------- what callers use

    @property
    def nbytes(self) -> int:
        return self._arena.nbytes if self._arena is not None else 0

    @property
    def resident(self) -> int:
        """Experts in memory."""
        return int(np.count_nonzero((self._state == _READY) | (self._state == _IN_USE)))

    def touch(self, threads: int = 4, progress: Callable[[int], None] | None = None) -> float:
        """First touch of the slots, before anything is read. Returns seconds. See `Arena.touch`."""
        return self._arena.touch(threads, progress) if self._arena is not None else 0.0

    def request(self, layer: int, experts: NDArray[np.integer]) -> None:
        """Ask for `experts` (ascending, distinct) of a layer; reads start now. Take them with `arrivals`."""
        if self._unfinished:
            self.abort()
        self._begin_change()
        self.policy.use(self._index[layer], experts)
        base = self._index[layer] * self._experts
        self._layer = layer
        self._victims = []
        self._unfinished = True
        guessed, right = len(self._guessed(layer)), self.counters.guessed_right
        for i, expert in enumerate(experts.tolist()):
            slot = self._slot_of.get(base + expert)
            if slot is None:
                self._pending.append((i, expert))
            elif self._state[slot] == _READY:
                self._hit(i, slot)
            else:
                self._confirm(i, expert, slot)
        self._drop_guesses(layer)
        self._issue()
        if guessed:
            self._trust += _TRUST_STEP * ((self.counters.guessed_right - right) / guessed - self._trust)
        self._changing = False

    def arrivals(self) -> Iterator[list[tuple[int, Addresses]]]:
        """Batches of (index in the request, six absolute addresses; 0 = absent) in the order of arrival.

        A batch is valid until the next one is asked for. Raises ReadError when a read failed.
        """
        held: list[int] = []
        if self._hits:
            batch, self._hits = self._hits, []
            held = [slot for _, slot in batch]
            yield [(i, self._addresses[slot]) for i, slot in batch]
        while True:
            self._begin_change()
            self._state[held] = _READY
            self._issue()
            if not self._outstanding:
                break
            arrived = self._collect()
            held = [slot for _, slot in arrived]
            self._changing = False
            yield [(i, self._addresses[slot]) for i, slot in arrived]
        self._unfinished = False
        self._changing = False
        self.reader.wants(EXPERT_SOURCE, NOTHING)

    def hint(self, layer: int, experts: NDArray[np.integer]) -> int:
        """Read these experts on a guess, when nothing certain is queued. Returns how many were started.

        The next `request` for the layer confirms those it wants and drops the others. When too few guesses
        come true (less than `LEAST_TRUST` of them lately), hints are ignored but for a sample.
        """
        self._begin_change()
        self._reap()
        self._hints += 1
        most = self.guesses
        if self._trust < LEAST_TRUST:  # guessing does not pay here: only look now and then whether it would
            most = min(most, 1 if self._hints % _LOOK_EVERY == 0 else 0)
        room = most - len(self._guess_tickets)
        base = self._index[layer] * self._experts
        started = 0
        for expert in experts.tolist():
            if room <= started:
                break
            key = base + expert
            if key in self._slot_of:
                continue
            slot = self._grab()
            if slot is None:
                break
            self._fill(slot, key, layer, expert, _GUESS)
            self._guess_tickets[slot] = self._submit(slot, layer, expert, SPECULATIVE, KIND_SPECULATIVE, None)
            self.counters.guessed += 1
            started += 1
        self._changing = False
        return started

    def abort(self) -> None:
        """Give up the request wherever it stands. Experts that arrived whole stay in memory."""
        self.reader.drain(EXPERT_SOURCE)
        self.reader.wants(EXPERT_SOURCE, NOTHING)
        for slot, ticket in self._guess_tickets.items():
            if self._state[slot] == _GUESS and ticket.done and not ticket.cancelled and ticket.error is None:
                self._state[slot] = _READY
        self._guess_tickets.clear()
        whole = (self._state == _READY) | (self._state == _IN_USE)
        self._state[whole] = _READY
        self._state[~whole] = _FREE
        self._key[~whole] = -1
        self._slot_of = {int(self._key[slot]): int(slot) for slot in np.flatnonzero(whole)}
        self._start_over()

    def close(self) -> None:
        """Stop reading and give the memory back."""
        self.abort()
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def __enter__(self) -> ExpertStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------- a request

    def _begin_change(self) -> None:
        """Whatever ends a change before `_changing` is False again has left the state void: start over."""
        if self._changing:
            self.abort()
        self._changing = True

    def _start_over(self) -> None:
        self._layer = -1
        self._pending: deque[tuple[int, int]] = deque()  # (index, expert) not yet queued
        self._hits = []
        self._outstanding = 0
        self._victims = []
        self._arrived: SimpleQueue[Ticket] = SimpleQueue()  # a new one: what was aborted never shows up
        self._unfinished = False
        self._changing = False

    def _hit(self, index: int, slot: int) -> None:
        self._state[slot] = _IN_USE
        self._hits.append((index, slot))
        self.counters.reused += 1

    def _confirm(self, index: int, expert: int, slot: int) -> None:
        """A wanted expert is being read on a guess, or its guess was being dropped."""
        ticket = self._guess_tickets[slot]
        if self._state[slot] == _DRAINING or ticket.cancelled or ticket.error is not None:
            self._forget(slot)
            self._pending.append((index, expert))
            return
        del self._guess_tickets[slot]
        self.counters.guessed_right += 1
        if not self.reader.promote(ticket, EXPERT, KIND_EXPERT, self._arrived.put, (index, slot)):
            self._state[slot] = _READING
            self._outstanding += 1
        elif ticket.error is None:
            self._state[slot] = _IN_USE
            self._hits.append((index, slot))
        else:
            self._forget(slot)
            self._pending.append((index, expert))

    def _issue(self) -> None:
        """Start reads while there are experts to read and slots to read into."""
        while self._pending:
            slot = self._grab()
            if slot is None:
                self.reader.wants(EXPERT_SOURCE, FULL)
                return
            index, expert = self._pending.popleft()
            layer = self._layer
            self._fill(slot, self._index[layer] * self._experts + expert, layer, expert, _READING)
            self._outstanding += 1
            self._submit(slot, layer, expert, EXPERT, KIND_EXPERT, (index, slot))
            self.counters.read += 1
        self.reader.wants(EXPERT_SOURCE, NOTHING)

    def _collect(self) -> list[tuple[int, int]]:
        """Wait for at least one read; return all that are there as (index, slot)."""
        tickets = []
        try:
            tickets.append(self._arrived.get_nowait())
        except Empty:
            started = time.perf_counter()
            tickets.append(self._arrived.get())
            self.counters.wait_seconds += time.perf_counter() - started
        # While more are to be read, at most half the slots are handed over at once: the other half is read into.
        most = max(1, self.slots // 2) if self._pending else self.slots
        with contextlib.suppress(Empty):
            while len(tickets) < most:
                tickets.append(self._arrived.get_nowait())
        for ticket in tickets:
            if ticket.error is not None:
                raise ticket.error
        arrived = [ticket.tag for ticket in tickets]
        self._outstanding -= len(arrived)
        self._state[[slot for _, slot in arrived]] = _IN_USE
        return arrived

    # ---------------------------------------------------------------- slots

    def _grab(self) -> int | None:
        """A slot to read into: a free one, else the one whose expert is least worth keeping."""
        free = np.flatnonzero(self._state == _FREE)
        if len(free):
            return int(free[0])
        self._reap()
        while True:
            if not self._victims:
                self._victims = self._choose_victims(1 + len(self._pending))
                if not self._victims:
                    return None
            slot = self._victims.pop()
            if self._state[slot] == _READY:
                del self._slot_of[int(self._key[slot])]
                return slot

    def _choose_victims(self, count: int) -> list[int]:
        """`count` slots (or what there is) whose experts are least worth keeping, the least of all last."""
        ready = np.flatnonzero(self._state == _READY)
        scores = self.policy.scores(self._key[ready])
        if count < len(ready):
            lowest = np.argpartition(scores, count - 1)[:count]
            ready, scores = ready[lowest], scores[lowest]
        chosen: list[int] = ready[np.argsort(-scores, kind="stable")].tolist()
        return chosen

    def _fill(self, slot: int, key: int, layer: int, expert: int, state: int) -> None:
        self._state[slot] = state
        self._key[slot] = key
        self._slot_of[key] = slot

    def _forget(self, slot: int) -> None:
        """The slot will not hold its expert; it is free once nothing is in flight into it."""
        self._slot_of.pop(int(self._key[slot]), None)
        self._key[slot] = -1
        ticket = self._guess_tickets.get(slot)
        if ticket is not None and not ticket.done:
            self._state[slot] = _DRAINING
        else:
            self._guess_tickets.pop(slot, None)
            self._state[slot] = _FREE

    def _drop_guesses(self, layer: int) -> None:
        """Guesses for a layer whose router has spoken: those that arrived stay, the others are cancelled."""
        wrong = self._guessed(layer)
        self.reader.cancel([self._guess_tickets[slot] for slot in wrong])
        for slot in wrong:
            ticket = self._guess_tickets[slot]
            if ticket.done and not ticket.cancelled and ticket.error is None:
                del self._guess_tickets[slot]
                self._state[slot] = _READY
            else:
                self._forget(slot)

    def _guessed(self, layer: int) -> list[int]:
        """Slots that hold or receive guesses for a layer."""
        low = self._index[layer] * self._experts
        return [slot for slot in self._guess_tickets if low <= self._key[slot] < low + self._experts]

    def _reap(self) -> None:
        """Guesses that ended since we last looked."""
        for slot in [slot for slot, ticket in self._guess_tickets.items() if ticket.done]:
            if self._state[slot] == _DRAINING or self._guess_tickets[slot].error is not None:
                self._forget(slot)

    def _submit(
        self, slot: int, layer: int, expert: int, priority: int, kind: int, tag: tuple[int, int] | None
    ) -> Ticket:
        """Queue the reads of one expert into a slot and note where its tensors will be."""
        assert self._arena is not None
        base = slot * self.slot_bytes
        reads, places = lay_out(self.runs[layer], expert, self.reader.alignment)
        extents = [
            (file, start, need, self._arena.view(base + place, room))
            for file, start, need, room, place in reads
        ]
        start = self._arena.address + base
        w1, s1, w2, s2, w3, s3 = (start + place if place >= 0 else 0 for place in places)
        self._addresses[slot] = (w1, s1, w2, s2, w3, s3)
        arrived = self._arrived.put if tag is not None else None
        return self.reader.submit(extents, priority, kind, arrived, tag)
