"""Hit rates of expert cache policies on a recorded trace of expert requests.

    python benchmarks/expert_cache.py expert_trace.bin

The trace is int32 pairs (layer 1..92, expert 0..895) in request order: passes over a growing prefix, each layer
by layer, position by position, 16 experts each. Streams made from it:

raw        every position of every pass asks on its own, as recorded
passes     each pass asks once per layer for the union of its positions (full recomputation)
decode     the last pass as one token a pass
prompt 5   the last pass as a prompt of 5 rows, then one token a pass
pairs      the last pass as two tokens a pass (a checked draft, or two sequences)

Every policy may give up an expert at once after its use. `optimum` knows the future (Belady). `union per pass`
is what kimistream does with the raw stream: of a pass's positions each expert is asked for once a layer, and
the repeats count as hits.
"""

from __future__ import annotations

import argparse
from collections import defaultdict, deque
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kimistream.stream.cache_policy import FadingMarks

LAYERS, EXPERTS, TOP = 92, 896, 16
SLOTS = (100, 200, 455, 1000, 2000, 3647, 7294)
Request = tuple[int, NDArray[np.int64]]  # layer index, experts ascending
NEVER = 1 << 40


class Policy(Protocol):
    def use(self, layer: int, experts: NDArray[np.int64]) -> None: ...

    def scores(self, keys: NDArray[np.int64]) -> NDArray[np.floating]: ...


class Recency:
    """Least recently used is given up."""

    def __init__(self) -> None:
        self.last = np.zeros(LAYERS * EXPERTS)
        self.now = 0

    def use(self, layer: int, experts: NDArray[np.int64]) -> None:
        self.now += 1
        self.last[layer * EXPERTS + experts] = self.now + np.arange(len(experts)) / 1000

    def scores(self, keys: NDArray[np.int64]) -> NDArray[np.floating]:
        return self.last[keys]


class Counting(Recency):
    """Least frequently used is given up, among equals the least recently used."""

    def __init__(self) -> None:
        super().__init__()
        self.count = np.zeros(LAYERS * EXPERTS)

    def use(self, layer: int, experts: NDArray[np.int64]) -> None:
        super().use(layer, experts)
        self.count[layer * EXPERTS + experts] += 1

    def scores(self, keys: NDArray[np.int64]) -> NDArray[np.floating]:
        return self.count[keys] + self.last[keys] * 1e-7


class Optimum:
    """What is needed again last is given up."""

    def __init__(self, stream: list[Request]) -> None:
        self.next = np.full(LAYERS * EXPERTS, NEVER, dtype=np.int64)
        self.uses: defaultdict[int, deque[int]] = defaultdict(deque)
        self.now = -1
        for n, (layer, experts) in enumerate(stream):
            for key in (layer * EXPERTS + experts).tolist():
                self.uses[key].append(n)

    def use(self, layer: int, experts: NDArray[np.int64]) -> None:
        self.now += 1
        for key in (layer * EXPERTS + experts).tolist():
            uses = self.uses[key]
            while uses and uses[0] <= self.now:
                uses.popleft()
            self.next[key] = uses[0] if uses else NEVER

    def scores(self, keys: NDArray[np.int64]) -> NDArray[np.floating]:
        return -self.next[keys].astype(np.float64)


def hit_rate(stream: list[Request], slots: int, policy: Policy, of: int = 0) -> float:
    """Share of the requested experts (or of `of` experts) that need not be read."""
    held = np.zeros(0, np.int64)
    is_held = np.zeros(LAYERS * EXPERTS, bool)
    hits = asked = 0
    for layer, experts in stream:
        keys = layer * EXPERTS + experts
        new = keys[~is_held[keys]]
        asked += len(keys)
        hits += len(keys) - len(new)
        policy.use(layer, experts)
        is_held[new] = True
        held = np.concatenate([held, new])
        if len(held) > slots:
            order = np.argpartition(-policy.scores(held), slots - 1)
            is_held[held[order[slots:]]] = False
            held = held[order[:slots]]
    return 1 - (asked - hits) / (of or asked)


def streams(trace: NDArray[np.int32]) -> dict[str, list[Request]]:
    starts = np.flatnonzero(trace[1:, 0] < trace[:-1, 0]) + 1
    passes = [part[:, 1].reshape(LAYERS, -1, TOP).astype(np.int64) for part in np.split(trace, starts)]
    last = passes[-1]
    positions = last.shape[1]

    def union(one: NDArray[np.int64], first: int, end: int) -> list[Request]:
        return [(layer, np.unique(one[layer, first:end])) for layer in range(LAYERS)]

    return {
        "raw": [
            (layer, np.sort(one[layer, p]))
            for one in passes
            for layer in range(LAYERS)
            for p in range(one.shape[1])
        ],
        "passes": [request for one in passes for request in union(one, 0, one.shape[1])],
        "decode": [request for p in range(positions) for request in union(last, p, p + 1)],
        "prompt 5": union(last, 0, 5) + [r for p in range(5, positions) for r in union(last, p, p + 1)],
        "pairs": [request for p in range(0, positions, 2) for request in union(last, p, p + 2)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    trace = np.fromfile(parser.parse_args().trace, dtype=np.int32).reshape(-1, 2)
    trace[:, 0] -= 1
    print("| stream, hits in % with slots | " + " | ".join(map(str, SLOTS)) + " |")
    print("|---" * (len(SLOTS) + 1) + "|")
    made = streams(trace)
    for name, stream in made.items():
        policies = {
            "least recently used": Recency,
            "least frequently used": Counting,
            "ours": lambda: FadingMarks(LAYERS, EXPERTS),
            "optimum": lambda stream=stream: Optimum(stream),
        }
        for label, make in policies.items():
            show(f"{name}: {label}", [hit_rate(stream, slots, make()) for slots in SLOTS])
        if name == "raw":
            asked = sum(len(experts) for _, experts in stream)
            ours = [hit_rate(made["passes"], slots, FadingMarks(LAYERS, EXPERTS), asked) for slots in SLOTS]
            show("raw: ours, union per pass", ours)


def show(label: str, rates: list[float]) -> None:
    print(f"| {label} | " + " | ".join(f"{100 * rate:.1f}" for rate in rates) + " |", flush=True)


if __name__ == "__main__":
    main()
