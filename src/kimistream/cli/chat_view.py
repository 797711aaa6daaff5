"""How an answer looks: content on stdout, reasoning dimmed on stderr, calls and figures beside it.

Knows: the events of an answer, terminals and pipes.
Does not know: where answers come from (engine.conversation).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from kimistream.budget import format_size, peak_rss
from kimistream.cli.live import Live, clock
from kimistream.cli.status import StatusLine
from kimistream.engine.answer import Finished
from kimistream.engine.conversation import Step
from kimistream.engine.model import Model
from kimistream.engine.records import Cost
from kimistream.text.output import Called, Content, Event, Reasoning, ReasoningWithdrawn


class AnswerView:
    """Shows one answer while it is entered.

    stdout gets the content and nothing else, ended by a line end (without `content` not even that); quiet
    leaves out all the rest.
    """

    def __init__(self, model: Model, *, quiet: bool, content: bool = True) -> None:
        self._quiet, self._show_content = quiet, content
        self._live = Live("")
        self._live.begin(model, 0)
        self.status = StatusLine(self._live.text, quiet=quiet)
        self.progress = self._live.progress
        self.cost = Cost()
        self._first = Cost()
        self._tokens = 0
        self._in_reasoning = self._content_open = False

    def __enter__(self) -> AnswerView:
        self.status.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_reasoning()
        if self._content_open:
            self.status.write("\n")
            self._content_open = False
        self.status.__exit__(kind, error, trace)

    def show(self, step: Step | Finished) -> None:
        """One step of the answer."""
        if isinstance(step, Finished):
            return
        if not self._tokens:
            self._first = step.record.cost
        self._tokens += 1
        self.cost = self.cost + step.record.cost
        self._live.token()
        for event in step.events:
            self._event(event)

    def _event(self, event: Event) -> None:
        match event:
            case Reasoning(text=text):
                if not self._quiet:
                    self.status.aside(text)
                    self._in_reasoning = True
            case Content(text=text):
                self._end_reasoning()
                if not self._show_content:
                    return
                self.status.write(text)
                self._content_open = not text.endswith("\n")
            case ReasoningWithdrawn():
                self._end_reasoning()
                if not self._quiet:
                    self.status.aside("(that was the answer: the model did not think)\n")
            case Called(call=call):
                self._end_reasoning()
                if self._content_open:
                    self.status.write("\n")
                    self._content_open = False
                if not self._quiet:
                    self.status.aside(f"calls {call.name} {call.arguments}\n")

    def _end_reasoning(self) -> None:
        if self._in_reasoning:
            self.status.aside("\n")
            self._in_reasoning = False

    def figures(self) -> str:
        """What the answer cost, in a line."""
        rest = self.cost - self._first
        steps = max(self._tokens - 1, 1)
        each = rest if self._tokens > 1 else self.cost
        return (
            f"{self._tokens} tokens in {clock(self.cost.seconds)}, the first after "
            f"{self._first.seconds:.2f} s, then {each.seconds / steps:.2f} s/token; "
            f"{format_size(each.nbytes / steps)} read per token"
        )


def stats_lines(model: Model, finished: Finished | None, ids: int, seed: int | None) -> list[str]:
    """What /stats shows."""
    plan = model.plan
    lines = [
        f"context: {ids} of {model.context} positions hold this conversation's state",
        f"memory: peak {format_size(peak_rss())} of a budget of {format_size(plan.budget)}",
        f"read so far: {format_size(model.reader.counters().total_bytes)}; nothing written but sessions",
    ]
    if seed is not None:
        lines.append(f"seed: {seed}")
    if finished is not None:
        usage = finished.usage
        lines.append(
            f"last answer: {usage.completion_tokens} tokens, ended by {finished.reason}; its prompt had "
            f"{usage.prompt_tokens} tokens, {usage.reused_tokens} of them not computed again"
        )
    return lines


def ending(finished: Finished) -> str:
    """Words for an ending that a person should know of; empty for the ordinary one."""
    words: dict[str, Any] = {
        "length": "the answer was cut: it reached --max-tokens or the end of the context",
        "interrupted": "stopped; what was said so far is kept",
    }
    return str(words.get(finished.reason, ""))
