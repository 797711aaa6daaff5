"""Which experts stay in memory: how lately and how often they were asked for, in the clock of each layer.

Knows: the past uses of every (layer, expert), and that layers pass in a circle.
Does not know: slots, reading, or what an expert is.

Each use leaves a mark that fades fast and one that fades slowly, age counted in passes of the expert's own
layer (a clock of requests would call an expert old merely because 91 other layers came in between, which is
why least-recently-used keeps nothing that is needed). What is next needed last, that is the layer just
passed, is given up first among equals. Chosen on a real trace by benchmarks/expert_cache.py; the figures
against least-recently-used and the offline optimum are in docs/LEARNED.md ("Stream").
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FAST, SLOW = 0.3, 0.97
"""What remains of a mark after one pass."""
SLOW_WEIGHT = 0.2
"""What a slow mark counts beside a fast one."""
CIRCLE_WEIGHT = 0.1
"""What the place in the circle of layers counts: from 0 (needed next) to this (just passed)."""

_AGES = 1024


class FadingMarks:
    """Scores for `keys` = layer index * experts + expert; layer indices count from 0."""

    def __init__(self, layers: int, experts: int) -> None:
        self.layers = layers
        self.experts = experts
        self._fast = np.zeros(layers * experts, dtype=np.float32)  # both as of the pass in _seen
        self._slow = np.zeros(layers * experts, dtype=np.float32)
        self._seen = np.zeros(layers * experts, dtype=np.int32)
        self._clock = np.zeros(layers, dtype=np.int32)  # passes of each layer
        self._layer = 0  # the layer that is being passed
        age = np.arange(_AGES, dtype=np.float64)
        self._fast_left = (FAST**age).astype(np.float32)
        self._slow_left = (SLOW_WEIGHT * SLOW**age).astype(np.float32)

    def use(self, layer: int, experts: NDArray[np.integer]) -> None:
        """A pass asks for `experts` of a layer."""
        now = int(self._clock[layer]) + 1
        self._clock[layer] = now
        self._layer = layer
        keys = layer * self.experts + experts.astype(np.int64)
        age = np.minimum(now - self._seen[keys], _AGES - 1)
        self._fast[keys] = 1 + self._fast[keys] * self._fast_left[age]
        self._slow[keys] = 1 + self._slow[keys] * self._slow_left[age] / np.float32(SLOW_WEIGHT)
        self._seen[keys] = now

    def scores(self, keys: NDArray[np.int64]) -> NDArray[np.float32]:
        """Higher is worth keeping."""
        layer = keys // self.experts
        age = np.minimum(self._clock[layer] - self._seen[keys], _AGES - 1)
        marks = self._fast[keys] * self._fast_left[age] + self._slow[keys] * self._slow_left[age]
        distance = (layer - self._layer - 1) % self.layers
        return np.asarray(marks - distance * np.float32(CIRCLE_WEIGHT / self.layers), dtype=np.float32)
