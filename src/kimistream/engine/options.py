"""What a person may ask of the choice of tokens: each option, its range, and the refusal of anything else.

Knows: names, types, ranges and an example of every sampling option.
Does not know: how a token is chosen (sampling), or how an option is spelled on a command line.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any

from kimistream.engine.random import SEEDS, new_seed
from kimistream.errors import UsageError

Spell = Callable[[str], str]
"""How the user writes an option's name: `top_p` becomes `--top-p` on a command line."""

LEAST_TEMPERATURE = 1e-5
MOST_LOGPROBS = 20


@dataclass(frozen=True)
class _Range:
    """The values of one number: a closed range, without its low end if `above`; words and an example."""

    low: float
    high: float
    example: str
    whole: bool = False
    above: bool = False
    words: str = ""

    def holds(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if self.words:
            return f"{kind}, {self.words}"
        if self.high == math.inf:
            return f"{kind}, {self.low} or more"
        if self.above:
            return f"{kind}, above {self.low}, up to {self.high}"
        return f"{kind}, {self.low} to {self.high}"


NUMBERS: Mapping[str, _Range] = {
    "temperature": _Range(0, 100, "0.6", words=f"0 (greedy) or {LEAST_TEMPERATURE:.5f} to 100"),
    "top_p": _Range(0, 1, "0.95", above=True),
    "top_k": _Range(-1, 2**31 - 1, "40", whole=True, words="1 or more, or 0 for all tokens"),
    "min_p": _Range(0, 1, "0.05"),
    "repetition_penalty": _Range(0, 100, "1.1", above=True),
    "presence_penalty": _Range(-2, 2, "0.5"),
    "frequency_penalty": _Range(-2, 2, "0.5"),
    "seed": _Range(0, SEEDS - 1, "42", whole=True),
    "max_tokens": _Range(1, math.inf, "256", whole=True),
    "min_tokens": _Range(0, math.inf, "16", whole=True),
    "logprobs": _Range(0, MOST_LOGPROBS, "5", whole=True),
}
OPTIONAL = {"seed", "max_tokens", "logprobs"}
BIAS = _Range(-100, 100, "1008:-100")
TOKEN = _Range(0, math.inf, "1008", whole=True)


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How the next token is chosen, and when an answer ends. Checks itself; UsageError names the option.

    The order in which the options act is told in `sampling`.
    """

    temperature: float = 0.0
    """0 takes the most likely token; else logits are divided by it."""
    top_p: float = 1.0
    """Keep the fewest tokens whose probabilities reach this sum."""
    top_k: int = 0
    """Keep this many of the most likely tokens; 0 (or -1) keeps all."""
    min_p: float = 0.0
    """Keep tokens with at least this fraction of the highest probability."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in the prompt or the answer."""
    presence_penalty: float = 0.0
    """Taken off the logits of tokens that are in the answer."""
    frequency_penalty: float = 0.0
    """Taken off the logits once for every time the token is in the answer."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Added to the logits of these token ids; -100 in effect forbids, 100 in effect forces."""
    seed: int | None = None
    """Same seed, same answer. None: a new one is drawn (`with_seed`)."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer; a single string may be given as such."""
    include_stop: bool = False
    """Whether the stop string is part of the answer."""
    stop_ids: frozenset[int] = frozenset()
    """Token ids that end the answer, besides the model's own end tokens."""
    max_tokens: int | None = None
    min_tokens: int = 0
    """End tokens cannot be chosen before the answer has this many tokens."""
    logprobs: int | None = None
    """Report the chosen token's log probability and this many of the most likely; None: no report."""

    def __post_init__(self) -> None:
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in _checked(given, str).items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, values: Mapping[str, object], spell: Spell = str) -> SamplingOptions:
        """Options from names and values as a person gave them; messages spell the names by `spell`.

        A value of None stands for the default. Refuses names that are no sampling option.
        """
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise UsageError(
                    f"{spell(name)} is not a sampling option",
                    f"There are {', '.join(spell(n) for n in known)}.",
                )
        given = {name: value for name, value in values.items() if value is not None}
        return cls(**_checked(given, spell))

    def with_seed(self) -> SamplingOptions:
        """The same options with a seed: the one given, or one drawn now."""
        return self if self.seed is not None else replace(self, seed=new_seed())

    def check_vocabulary(self, vocab: int, spell: Spell = str) -> None:
        """Refuse token ids outside a vocabulary of `vocab` tokens."""
        for name, ids in (("logit_bias", self.logit_bias), ("stop_ids", self.stop_ids)):
            for token in ids:
                if token >= vocab:
                    raise UsageError(
                        f"{spell(name)}: token id {token} is outside the vocabulary of {vocab}",
                        f"Ids are 0 to {vocab - 1}.",
                    )

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    @property
    def penalized(self) -> bool:
        """Whether the choice depends on the tokens before."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


def _checked(values: Mapping[str, object], spell: Spell) -> dict[str, Any]:
    """The values in their own types, each inside its range."""
    good: dict[str, Any] = {}
    for name, value in values.items():
        if name in NUMBERS:
            good[name] = None if value is None and name in OPTIONAL else _number(name, value, spell)
        elif name == "logit_bias":
            good[name] = _bias(value, spell)
        elif name == "stop":
            good[name] = _stop(value, spell)
        elif name == "stop_ids":
            if isinstance(value, str) or not isinstance(value, Iterable):
                raise _refuse(spell(name), value, "a list of token ids", "[163586]")
            good[name] = frozenset(_token(spell(name), i) for i in value)
        else:
            if not isinstance(value, bool):
                raise _refuse(spell(name), value, "true or false", "true")
            good[name] = value
    least, most = good.get("min_tokens", 0), good.get("max_tokens")
    if most is not None and least > most:
        raise UsageError(
            f"{spell('min_tokens')} {least} is more than {spell('max_tokens')} {most}",
            f"Give {spell('min_tokens')} {most} or less.",
        )
    return good


def _refuse(option: str, value: object, allowed: str, example: str) -> UsageError:
    shown = repr(value) if isinstance(value, str) else str(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return UsageError(f"{option} {shown}: must be {allowed}", f"For example {option} {example}.")


def _number(name: str, value: object, spell: Spell) -> float | int:
    allowed = NUMBERS[name]
    number = _as_number(value, allowed.whole)
    if (
        number is None
        or not allowed.holds(number)
        or (name == "temperature" and 0 < number < LEAST_TEMPERATURE)
    ):
        raise _refuse(spell(name), value, str(allowed), allowed.example)
    return max(number, 0) if name == "top_k" else number


def _as_number(value: object, whole: bool) -> float | int | None:
    """The value as int or float, or None if it is neither (a bool and a text are not numbers)."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    if whole:
        try:
            return operator.index(value)  # type: ignore[arg-type]  # a Real need not be an index: then TypeError
        except TypeError:
            return None
    number = float(value)
    return number if math.isfinite(number) else None


def _token(option: str, value: object) -> int:
    token = _as_number(value, whole=True)
    if token is None or not TOKEN.holds(token):
        raise _refuse(f"{option}: token id", value, str(TOKEN), TOKEN.example)
    return int(token)


def _bias(value: object, spell: Spell) -> dict[int, float]:
    option = spell("logit_bias")
    if not isinstance(value, Mapping):
        raise _refuse(option, value, "a mapping of token ids to numbers", "{1008: -100}")
    biases = {}
    for key, amount in value.items():
        token, number = _token(option, key), _as_number(amount, whole=False)
        if number is None or not BIAS.holds(number):
            raise _refuse(f"{option} {token}:", amount, str(BIAS), BIAS.example)
        biases[token] = float(number)
    return dict(sorted(biases.items()))


def _stop(value: object, spell: Spell) -> tuple[str, ...]:
    option = spell("stop")
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Iterable):
        raise _refuse(option, value, "a text or a list of texts", "'###'")
    checked = tuple(strings)
    for text in checked:
        if not isinstance(text, str) or not text:
            raise _refuse(option, text, "a text of at least one character", "'###'")
    return checked
