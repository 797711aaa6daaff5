"""Which experts stay in memory: counting with ageing, in the clock of each layer.

Knows: how often and how recently every (layer, expert) was asked for, and the order in which layers pass.
Does not know: slots, reading, or what an expert is.

The score of an expert is the sum over its past uses of `decay ** age`, age counted in passes of its own
layer. The lowest score is given up first. Chosen on a real trace by benchmarks/expert_cache.py; figures
against least-recently-used and the offline optimum are in docs/LEARNED.md ("Stream").
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DECAY = 0.9


class FrequencyPolicy:
    """Scores for `keys` = layer index * experts + expert; layer indices count from 0."""

    def __init__(self, layers: int, experts: int, decay: float = DECAY) -> None:
        self.experts = experts
        self.decay = decay
        self._count = np.zeros(layers * experts, dtype=np.float32)  # as of the layer's clock in _seen
        self._seen = np.zeros(layers * experts, dtype=np.int32)
        self._clock = np.zeros(layers, dtype=np.int32)  # passes of each layer
        powers = np.float32(decay) ** np.arange(256, dtype=np.float32)
        self._powers = powers.astype(np.float32)

    def use(self, layer: int, experts: NDArray[np.integer]) -> None:
        """A pass asks for `experts` of a layer."""
        now = int(self._clock[layer]) + 1
        self._clock[layer] = now
        keys = layer * self.experts + experts.astype(np.int64)
        self._count[keys] = 1 + self._count[keys] * self._aged(now - self._seen[keys])
        self._seen[keys] = now

    def scores(self, keys: NDArray[np.int64]) -> NDArray[np.float32]:
        """Higher is worth keeping."""
        age = self._clock[keys // self.experts] - self._seen[keys]
        return self._count[keys] * self._aged(age)

    def _aged(self, age: NDArray[np.int32]) -> NDArray[np.float32]:
        return self._powers[np.minimum(age, len(self._powers) - 1)]
