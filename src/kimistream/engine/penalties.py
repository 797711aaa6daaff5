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
        self._prompt = (
            np.unique(np.asarray(prompt, np.int64)) if self._repetition != 1 else np.empty(0, np.int64)
        )
        self._slot: dict[int, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.int64)
        self._fresh = np.zeros(64, np.bool_)
        """Whether a token of the answer is not in the prompt."""

    def add(self, token: int) -> None:
        """The answer has one more token."""
        slot = self._slot.get(token)
        if slot is None:
            slot = self._slot[token] = len(self._slot)
            if slot == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
                self._fresh = np.concatenate((self._fresh, np.zeros_like(self._fresh)))
            at = int(np.searchsorted(self._prompt, token))
            self._ids[slot] = token
            self._fresh[slot] = at == len(self._prompt) or self._prompt[at] != token
        self._counts[slot] += 1

    def remove(self, token: int) -> None:
        """One token of the answer was taken back."""
        self._counts[self._slot[token]] -= 1

    def apply(self, logits: Floats64) -> None:
        """Change float64 logits `[vocab]` in place."""
        used = np.flatnonzero(self._counts[: len(self._slot)])
        ids, counts = self._ids[used], self._counts[used]
        if self._repetition != 1:
            for seen in (self._prompt, ids[self._fresh[used]]):
                x = logits[seen]
                logits[seen] = np.where(x > 0, x / self._repetition, x * self._repetition)
        logits[ids] -= self._frequency * counts
        logits[ids] -= self._presence
