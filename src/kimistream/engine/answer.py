"""One answer while it arrives: token ids to reasoning, content and calls, and when it ends.

Knows: the parser's events, stop strings, and the words for why an answer ended.
Does not know: where the ids come from.

Stop strings are looked for in the content; the model's reasoning may spell them. They are found across the
borders of tokens, because it is the text that is searched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from kimistream.engine.options import SamplingOptions
from kimistream.engine.stop import StopStrings
from kimistream.text.calls import ToolCall
from kimistream.text.output import (
    Called,
    Content,
    Event,
    Output,
    OutputParser,
    Reasoning,
    ReasoningWithdrawn,
)
from kimistream.text.tokenizer import Tokenizer

Reason = Literal["stop", "length", "tool_calls", "interrupted"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer: of its prompt, those of the prompt that were not computed again, and its own."""

    prompt_tokens: int
    reused_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of an answer.

    message: the answer as it stands in the history; None when nothing had come of it. seed: the one in use.
    """

    reason: Reason
    usage: Usage
    message: dict[str, Any] | None
    seed: int
    stop_string: str | None = None


class AnswerReader:
    """Turns the ids of one answer into events. However ids are cut into calls, the events add up to the same.

    thinking: what the prompt was rendered with; calls: whether tools may be called.
    """

    def __init__(
        self, tokenizer: Tokenizer, options: SamplingOptions, *, thinking: bool, calls: bool
    ) -> None:
        self._parser = OutputParser(tokenizer, thinking=thinking, calls=calls)
        self._stops = StopStrings(options.stop, include=options.include_stop)
        self._unwatched = options.min_tokens
        self._count = 0
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ToolCall] = []

    @property
    def done(self) -> bool:
        """Whether the answer is complete: closed by the model, or at a stop string."""
        return self._parser.ended or self._stops.matched is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stops.matched

    def feed(self, token_id: int) -> list[Event]:
        """What became certain with one more token."""
        self._count += 1
        return self._take(self._parser.feed([token_id]))

    def finish(self) -> list[Event]:
        """No more tokens come: what was held back."""
        events = self._take(self._parser.finish())
        return events + self._flush()

    def reason(self, *, cut: bool) -> Reason:
        """Why the answer ended. cut: it had as many tokens as it may."""
        if self._calls:
            return "tool_calls"
        return "length" if cut and not self.done else "stop"

    def message(self, calls_before: int) -> dict[str, Any]:
        """The answer for the history, as it was shown; `calls_before` numbers the calls' ids on."""
        reasoning, content = "".join(self._reasoning), "".join(self._content)
        return Output(reasoning or None, content or None, tuple(self._calls)).message(calls_before)

    def _take(self, events: list[Event]) -> list[Event]:
        taken: list[Event] = []
        for event in events:
            if self._stops.matched is not None:
                break
            match event:
                case Content(text=text):
                    sure = self._stops.feed(text, watch=self._count > self._unwatched)
                    taken += self._show(sure)
                case Reasoning(text=text):
                    self._reasoning.append(text)
                    taken.append(event)
                case ReasoningWithdrawn():
                    self._reasoning.clear()
                    taken.append(event)
                case Called(call=call):
                    taken += self._flush()
                    self._calls.append(call)
                    taken.append(event)
        return taken

    def _show(self, text: str) -> list[Event]:
        if not text:
            return []
        self._content.append(text)
        return [Content(text)]

    def _flush(self) -> list[Event]:
        return self._show(self._stops.finish())
