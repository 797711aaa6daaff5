"""The options that choose tokens, the same for every command that generates.

Knows: how they are spelled, and which values hold when none is given.
Does not know: what they do (engine.sampling), or their ranges (engine.options).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from kimistream.cli.options import Whole
from kimistream.errors import UsageError

if TYPE_CHECKING:
    from kimistream.engine.options import SamplingOptions

GROUP = Group("Choice of tokens", sort_key=2)


def _help(text: str) -> Parameter:
    return Parameter(help=text, group=GROUP, negative=())


@Parameter(name="*")
@dataclass(frozen=True)
class Sampling:
    """The options as they were given; None where one was not."""

    temperature: Annotated[float | None, _help("0 takes the most likely token; higher is freer.")] = None
    top_p: Annotated[float | None, _help("Keep the fewest tokens whose probabilities reach this sum.")] = None
    top_k: Annotated[Whole | None, _help("Keep this many of the most likely tokens; 0 keeps all.")] = None
    min_p: Annotated[
        float | None, _help("Keep tokens with at least this fraction of the highest probability.")
    ] = None
    repetition_penalty: Annotated[
        float | None, _help("Above 1 makes tokens of the prompt and the answer less likely.")
    ] = None
    presence_penalty: Annotated[
        float | None, _help("Taken off the logits of tokens that are in the answer.")
    ] = None
    frequency_penalty: Annotated[
        float | None, _help("Taken off once for every time a token is in the answer.")
    ] = None
    logit_bias: Annotated[
        list[str] | None, _help("ID:BIAS, added to the logit of a token; may be given again.")
    ] = None
    seed: Annotated[Whole | None, _help("The same seed gives the same answer; by default a new one.")] = None
    stop: Annotated[
        list[str] | None, _help("A text that ends the answer and is not part of it; may be given again.")
    ] = None

    def options(self, recommended: Mapping[str, float] | None = None, **more: Any) -> SamplingOptions:
        """The options in use: those given, else those `recommended`, else greedy. Raises UsageError."""
        from kimistream.engine.options import SamplingOptions

        given = {name: value for name, value in vars(self).items() if value is not None}
        if "logit_bias" in given:
            given["logit_bias"] = _biases(given["logit_bias"])
        return SamplingOptions.of({**(recommended or {}), **given, **more}, spell)


def spell(name: str) -> str:
    """An option as it is written on the command line."""
    return "--" + name.replace("_", "-")


def describe(options: SamplingOptions) -> str:
    """The choice of tokens in a few words: `greedy`, or the values in use with the seed."""
    if options.greedy:
        return "greedy"
    words = [f"temperature {options.temperature:g}"]
    if options.top_p < 1:
        words.append(f"top-p {options.top_p:g}")
    if options.top_k:
        words.append(f"top-k {options.top_k}")
    if options.min_p:
        words.append(f"min-p {options.min_p:g}")
    return ", ".join([*words, f"seed {options.seed}"])


def _biases(texts: list[str]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for text in texts:
        token, _, amount = text.partition(":")
        try:
            key, value = int(token), float(amount)
        except ValueError:
            raise UsageError(
                f"--logit-bias {text}: is not a token id, a colon and a number",
                "For example --logit-bias 1008:-100.",
            ) from None
        if key in biases:
            raise UsageError(
                f"--logit-bias {text}: token {key} has the bias {biases[key]:g} already",
                "Give each token once.",
            )
        biases[key] = value
    return biases
