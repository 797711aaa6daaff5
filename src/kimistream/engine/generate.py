"""From a prompt to tokens: prefill in chunks, then one row a pass.

Knows: chunks, the greedy choice, when to stop.
Does not know: text, or how a pass is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kimistream.engine.records import Cost, Meter, TokenRecord
from kimistream.errors import UsageError
from kimistream.model.forward import Forward, Progress
from kimistream.model.rows import Run, Wanted
from kimistream.model.state import SequenceState

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
LogitsSink = Callable[[Floats], None]
"""Receives float32 `[n, vocab]`, the logits after the next n positions, in order."""


class Choose(Protocol):
    """Chooses the next token from the logits `[vocab]` after `position` (0-based)."""

    def __call__(self, logits: Floats, position: int) -> int: ...


def greedy(logits: Floats, position: int) -> int:
    """The token with the largest logit; an exact tie goes to the lower id."""
    return int(np.argmax(logits))


def as_ids(prompt: Sequence[int] | Ints, vocab: int) -> Ints:
    """Token ids as int32 `[n]`; refuses an empty prompt and ids outside the vocabulary."""
    try:
        ids = np.asarray(prompt, np.int64)
    except (OverflowError, ValueError, TypeError):
        strange = next((one for one in prompt if not isinstance(one, int) or abs(one) >> 62), prompt)
        raise UsageError(
            f"{str(strange)[:40]} is not a token id; ids are whole numbers from 0 to {vocab - 1}",
            "Use the tokenizer of this checkpoint.",
        ) from None
    if ids.ndim != 1 or not len(ids):
        raise UsageError("the prompt is empty: there is no token to start from", "Give at least one token.")
    outside = ids[(ids < 0) | (ids >= vocab)]
    if len(outside):
        raise UsageError(
            f"token id {outside[0]} is outside the vocabulary of {vocab} (0 to {vocab - 1})",
            "Use the tokenizer of this checkpoint.",
        )
    return ids.astype(np.int32)


def prefill(
    forward: Forward,
    state: SequenceState,
    ids: Ints,
    *,
    chunk: int,
    wanted: Wanted = "last",
    more: bool = False,
    progress: Callable[[int, int], Progress | None] | None = None,
    sink: LogitsSink | None = None,
) -> Floats:
    """Move a sequence forward by its prompt, `chunk` rows a pass; the last chunk's wanted logits.

    progress: called with (rows done, rows in all) before each pass, gives the pass's own callback.
    sink: receives every chunk's logits when wanted is "all".
    """
    logits = np.empty((0, 0), np.float32)
    for start in range(0, len(ids), chunk):
        piece = ids[start : start + chunk]
        last = start + chunk >= len(ids)
        want: Wanted = wanted if last or wanted == "all" else "none"
        watch = progress(start, len(ids)) if progress else None
        logits = forward.run([Run(state, piece, want)], more=more or not last, progress=watch)
        if sink is not None and want == "all":
            sink(logits)
    return logits


def generate(
    forward: Forward,
    state: SequenceState,
    prompt: Ints,
    *,
    max_tokens: int,
    meter: Meter,
    chunk: int,
    choose: Choose = greedy,
    stop_ids: frozenset[int] = frozenset(),
    ended: Callable[[], bool] | None = None,
    progress: Callable[[int, int], Progress | None] | None = None,
    sink: LogitsSink | None = None,
) -> Iterator[TokenRecord]:
    """Yield up to `max_tokens` tokens after the prompt, each with what it cost.

    A stop token ends the generation and is yielded with stop=True. `ended` is asked after each token whether
    it was the last one, for other reasons (a stop string). With a sink, the logits after every
    position go to it, those after the last generated token included, which costs one pass more.
    """
    state.room_for(len(prompt) + max_tokens - (0 if sink else 1))
    wanted: Wanted = "all" if sink else "last"
    expect_more = max_tokens > 1 or sink is not None
    logits = prefill(
        forward,
        state,
        prompt,
        chunk=chunk,
        wanted=wanted,
        more=expect_more,
        progress=progress,
        sink=sink,
    )
    for n in range(max_tokens):
        token = choose(logits[-1], state.position - 1)
        stop = token in stop_ids
        yield TokenRecord(token, state.position, meter.lap(), stop)
        last = stop or n + 1 == max_tokens or (ended is not None and ended())
        if last and sink is None:
            return
        watch = progress(0, 1) if progress else None
        step = np.array([token], np.int32)
        more = not last and (n + 2 < max_tokens or sink is not None)
        logits = forward.run([Run(state, step, "last")], more=more, progress=watch)
        if sink is not None:
            sink(logits)
        if last:
            return


def total(records: Sequence[TokenRecord]) -> Cost:
    """The cost of all tokens together."""
    cost = Cost()
    for record in records:
        cost = cost + record.cost
    return cost
