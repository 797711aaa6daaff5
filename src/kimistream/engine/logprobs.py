"""Log probabilities of the chosen token and of the most likely ones.

Knows: the model's own distribution, log softmax of the logits as they came.
Does not know: the options that changed them for the choice: as vLLM by default, what is reported is before
penalties, bias, temperature and the cuts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kimistream.engine.cuts import largest
from kimistream.engine.weights import bits_for, log_sum, weights

Floats = npt.NDArray[np.float32]
Floats64 = npt.NDArray[np.float64]
Ints64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One token's log probability (natural; error below 1e-7) and those of the most likely tokens."""

    id: int
    logprob: float
    rank: int
    """1 for the most likely token; of equal ones the lower id comes first."""
    top: tuple[tuple[int, float], ...] = ()
    """(id, log probability), most likely first; the chosen token is among them only if it ranks so high."""


def token_logprobs(logits: Floats, token: int, count: int) -> TokenLogprobs:
    """The report on a token: float32 logits `[vocab]` as the model gave them, `count` most likely tokens."""
    peak = float(logits.max())
    bits = bits_for(len(logits))
    norm = log_sum(int(weights(logits, peak, 1.0, bits).sum()), bits)

    def logprob(i: int) -> float:
        return float(logits[i]) - peak - norm

    rank = 1 + np.count_nonzero(logits > logits[token]) + np.count_nonzero(logits[:token] == logits[token])
    ids = largest(logits, count) if count else np.empty(0, np.int64)
    ids = ids[np.argsort(-logits[ids], kind="stable")]
    return TokenLogprobs(token, logprob(token), int(rank), tuple((int(i), logprob(i)) for i in ids))
