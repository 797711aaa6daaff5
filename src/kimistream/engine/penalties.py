"""What tokens seen before do to the logits.

Knows: which tokens the prompt and the answer hold, how often, and the three penalties.
Does not know: what is chosen.

The formulas are those of vLLM and of the OpenAI API, in this order, once for each token id:

    x = x / repetition if x > 0 else x * repetition     for tokens of the prompt or the answer
    x = x - frequency * (times the token is in the answer)
    x = x - presence                                    for tokens of the answer
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kimistream.engine.options import SamplingOptions

Floats64 = npt.NDArray[np.float64]


class Penalties:
    """Counts of the tokens so far, as far as the options need them; memory grows with the distinct ones."""

    def __init__(self, options: SamplingOptions, prompt: Sequence[int] | npt.NDArray[np.int32]) -> None:
        self._repetition = options.repetition_penalty
        self._presence = options.presence_penalty
        self._frequency = options.frequency_penalty
        seen = np.unique(np.asarray(prompt, np.int64)) if self._repetition != 1 else np.empty(0, np.int64)
        self._slot = {int(token): i for i, token in enumerate(seen)}
        self._ids = seen
        self._in_prompt = np.ones(len(seen), np.bool_)
        self._counts = np.zeros(len(seen), np.int64)

    def add(self, token: int) -> None:
        """The answer has one more token."""
        slot = self._slot.setdefault(token, len(self._slot))
        if slot == len(self._ids):
            more = max(64, slot)
            self._ids = np.concatenate((self._ids, np.zeros(more, np.int64)))
            self._in_prompt = np.concatenate((self._in_prompt, np.zeros(more, np.bool_)))
            self._counts = np.concatenate((self._counts, np.zeros(more, np.int64)))
        self._ids[slot] = token
        self._counts[slot] += 1

    def remove(self, token: int) -> None:
        """One token of the answer was taken back."""
        self._counts[self._slot[token]] -= 1

    def apply(self, logits: Floats64) -> None:
        """Change float64 logits `[vocab]` in place."""
        used = len(self._slot)
        ids, counts = self._ids[:used], self._counts[:used]
        x = logits[ids]
        if self._repetition != 1:
            seen = self._in_prompt[:used] | (counts > 0)
            penalized = np.where(x > 0, x / self._repetition, x * self._repetition)
            x = np.where(seen, penalized, x)
        x = x - self._frequency * counts
        logits[ids] = x - self._presence * (counts > 0)
