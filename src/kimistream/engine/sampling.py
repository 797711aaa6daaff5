"""The choice of the next token.

Knows: logits, the options, the tokens so far and the place of the next one; nothing else has a say.
Does not know: text, passes, or other sequences.

The order, which is the one vLLM documents:

1. logprobs are taken from the logits as they came (`logprobs`);
2. end tokens are ruled out while the answer is shorter than min_tokens;
3. logit_bias is added;
4. repetition, frequency and presence penalties (`penalties`);
5. at temperature 0 the largest logit wins, else logits are divided by the temperature;
6. min_p, then top_k, then top_p cut; each sees the probabilities of the tokens left by the one before;
7. one of the tokens left is taken by the random number of this seed and place (`random`).

Wherever tokens are equal, the lower id comes first. top_p keeps a token if those before it sum to less than
top_p, so the first one always stays. Logits are float64 from step 2 on; from step 6 on all numbers are whole
(`weights`), so the same logits bits, options, ids and seed give the same token on every CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kimistream.engine.cuts import largest, nucleus
from kimistream.engine.logprobs import TokenLogprobs, token_logprobs
from kimistream.engine.options import SamplingOptions
from kimistream.engine.penalties import Penalties
from kimistream.engine.random import new_seed, random64
from kimistream.engine.weights import bits_for, pick, weights
from kimistream.errors import NumberError, UsageError

Floats = npt.NDArray[np.float32]
Floats64 = npt.NDArray[np.float64]
Ints64 = npt.NDArray[np.int64]


class Sampler:
    """Chooses one sequence's tokens (`Choose`); keeps the answer so far, and can be built anew from its ids.

    prompt: all ids before the answer. output: ids of the answer so far, to go on where it was left.
    vocab: the number of logits. end_ids: the model's own end tokens. stream: tells several answers to one
    prompt and seed apart. Raises UsageError for token ids outside the vocabulary.
    """

    def __init__(
        self,
        options: SamplingOptions,
        prompt: Sequence[int] | npt.NDArray[np.int32],
        output: Sequence[int] = (),
        *,
        vocab: int,
        end_ids: frozenset[int] = frozenset(),
        stream: int = 0,
    ) -> None:
        options.check_vocabulary(vocab)
        self.seed = options.seed if options.seed is not None else new_seed()
        """The seed in use: with it and the same options the answer can be had again."""
        self.options = replace(options, seed=self.seed)
        self.stop_ids = options.stop_ids | end_ids
        """Every token that ends the answer."""
        self.logprobs: TokenLogprobs | None = None
        """The report on the token chosen last, if the options ask for one."""
        self._vocab = vocab
        self._stream = stream
        self._start = len(prompt)
        self._output = [int(token) for token in output]
        self._ends = np.array(sorted(i for i in self.stop_ids if i < vocab), np.int64)
        self._bias_ids = np.array(list(options.logit_bias), np.int64)
        self._bias = np.array(list(options.logit_bias.values()), np.float64)
        self._penalties = Penalties(options, prompt) if options.penalized else None
        if self._penalties is not None:
            for token in self._output:
                self._penalties.add(token)

    @property
    def output(self) -> tuple[int, ...]:
        """The ids of the answer so far."""
        return tuple(self._output)

    def rewind(self, length: int) -> None:
        """Take tokens of the answer back until prompt and answer have `length` tokens."""
        if not self._start <= length <= self._start + len(self._output):
            raise ValueError(
                f"rewind to {length}: the answer covers {self._start} to {self._start + len(self._output)}"
            )
        while self._start + len(self._output) > length:
            token = self._output.pop()
            if self._penalties is not None:
                self._penalties.remove(token)

    def __call__(self, logits: Floats, position: int) -> int:
        """The token after `position`, from the float32 logits `[vocab]` there; it becomes part of the answer.

        Raises NumberError for logits that are NaN or infinite; a logit of minus infinity rules a token out.
        """
        place = self._start + len(self._output)
        if position + 1 != place or logits.shape != (self._vocab,):
            raise ValueError(
                f"logits {logits.shape} after position {position}; "
                f"({self._vocab},) after position {place - 1} are next"
            )
        peak = float(logits.max())  # NaN if there is one
        if not np.isfinite(peak):
            raise NumberError(
                f"the logits after position {position} are not finite (their largest is {peak})",
                "A weight may be damaged: `kimistream verify --deep` names it.",
            )
        changed = self._changed(logits)
        token = self._pick(logits if changed is None else changed, place)
        if self.options.logprobs is not None:
            self.logprobs = token_logprobs(logits, token, self.options.logprobs)
        self._output.append(token)
        if self._penalties is not None:
            self._penalties.add(token)
        return token

    def _changed(self, logits: Floats) -> Floats64 | None:
        """Steps 2 to 4 on a copy; None if they change nothing."""
        too_short = len(self._output) < self.options.min_tokens and len(self._ends) > 0
        if not (too_short or len(self._bias) or self._penalties is not None):
            return None
        x = logits.astype(np.float64)
        if too_short:
            x[self._ends] = -np.inf
        if len(self._bias):
            x[self._bias_ids] += self._bias
        if self._penalties is not None:
            self._penalties.apply(x)
        if too_short and x.max() == -np.inf:
            raise UsageError(
                f"min_tokens {self.options.min_tokens}: every token left to choose from ends the answer",
                "Give a smaller min_tokens.",
            )
        return x

    def _pick(self, x: Floats | Floats64, place: int) -> int:
        """Steps 5 to 7."""
        if self.options.greedy:
            return int(x.argmax())
        weight, ids = candidates(x, self.options)
        number = random64(self.seed, place, self._stream)
        chosen = pick(weight, number * int(weight.sum()) >> 64)
        return chosen if ids is None else int(ids[chosen])


def candidates(logits: Floats | Floats64, options: SamplingOptions) -> tuple[Ints64, Ints64 | None]:
    """Weights proportional to the probabilities with which tokens are chosen; 0 for those cut off.

    logits: `[vocab]`, the largest finite; options.temperature above 0. The ids, ascending, are given only if
    they are not all of them.
    """
    peak, bits = float(logits.max()), bits_for(len(logits))
    ids = None
    # a cut by min_p leaves the most likely tokens, as one by top_k does: the cheaper goes first
    if 0 < options.top_k < len(logits):
        ids = largest(logits, options.top_k)
        logits = logits[ids]
    weight = weights(logits, peak, options.temperature, bits)
    if options.min_p > 0:
        # the most likely token weighs 2^bits: the product is exact
        weight *= weight >= math.ceil(options.min_p * 2.0**bits)
    if options.top_p < 1:
        weight *= nucleus(weight, options.top_p)
    return weight, ids
