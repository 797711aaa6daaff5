"""What the model said: token ids to reasoning, content and tool calls, at once or while they arrive.

Knows: the channels of an assistant's turn, and what to make of a turn that is malformed or cut short.
Does not know: how ids become tags (`markers`), how a call is written (`calls`).

The turn begins where the prompt ended: inside the think channel, or with thinking off inside the response.

    REASONING close(think) open(response) CONTENT close(response) [open(tools) calls close(tools)] close(message)

Tags are recognised by their marker ids, so text that spells a marker is text. Of tags that mean nothing in
their place the characters are kept. Where the two original parsers (of vLLM and of sglang, both on text)
disagree:

* `open(response)` inside the think channel ends it; the text before stays reasoning (sglang; vLLM loses it).
* `open(tools)` inside the think channel ends it as well (sglang).
* `close(response)` inside the think channel: the model skipped thinking, and all so far was content (sglang).
* A tag that is cut off by the end of the output is left out (sglang; vLLM shows it).
* White space around a tag's name is accepted (vLLM).
* Empty reasoning and content are None, and so is blank content beside tool calls (vLLM).

Beyond both: a `json` block is read as the arguments of its call; thinking that was switched off and is there
nevertheless is reasoning; a channel that opens a second time while it is open goes on.
As in both: behind the think channel, text outside a response is content only if no response follows (it is
held back until that is known); only the first response channel counts; calls that are not complete, and text
between calls, are left out.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any

import msgspec

from kimistream.text.calls import ToolCall, ToolsReader, call_id
from kimistream.text.markers import Tag, TagScanner
from kimistream.text.tokenizer import Tokenizer

# What is a tag in the channels whose text is shown while it arrives (elsewhere text can wait). In `between`,
# think is closed and no response is open; `response` without thinking may turn out to be thinking.
_SHOWN_TAGS = {
    "think": frozenset(
        {("close", "think"), ("close", "response"), ("close", "message")}
        | {("open", "think"), ("open", "response"), ("open", "tools")}
    ),
    "between": frozenset(
        {("close", "response"), ("close", "message"), ("open", "response"), ("open", "tools")}
    ),
    "response": frozenset(
        {("close", "response"), ("close", "message")}
        | {("open", "think"), ("open", "response"), ("open", "tools")}
    ),
}


class Reasoning(msgspec.Struct, frozen=True):
    """More of the reasoning."""

    text: str


class Content(msgspec.Struct, frozen=True):
    """More of the content."""

    text: str


class ReasoningWithdrawn(msgspec.Struct, frozen=True):
    """All reasoning so far was none; its text follows as `Content`."""


class Called(msgspec.Struct, frozen=True):
    """A tool call is complete."""

    call: ToolCall


Event = Reasoning | Content | ReasoningWithdrawn | Called


class Output(msgspec.Struct, frozen=True):
    """An assistant's turn. `ended`: the model closed it, it was not cut short."""

    reasoning: str | None = None
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    ended: bool = False

    @property
    def finish_reason(self) -> str:
        """OpenAI's word for why the turn ended: tool_calls, stop or length."""
        return "tool_calls" if self.tool_calls else "stop" if self.ended else "length"

    def message(self, calls_before: int = 0) -> dict[str, Any]:
        """The turn as a message for the history; `calls_before` numbers the calls' ids on."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call_id(call, calls_before + position),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for position, call in enumerate(self.tool_calls)
            ]
        return message


def parse(tokenizer: Tokenizer, ids: Iterable[int], *, thinking: bool = True, calls: bool = True) -> Output:
    """The turn in `ids`, which follow the generation prompt; see `OutputParser` for the options."""
    parser = OutputParser(tokenizer, thinking=thinking, calls=calls)
    parser.feed(ids)
    parser.finish()
    return parser.output


class OutputParser:
    """Reads a turn id by id. However the ids are cut into `feed`s, the result is the same.

    `thinking` is what the prompt was rendered with. Without `calls` (tool choice none, no tools) tool calls
    are read over. Raises `TextError` when the vocabulary has no markers, and for ids outside of it.
    """

    def __init__(self, tokenizer: Tokenizer, *, thinking: bool = True, calls: bool = True) -> None:
        self._scanner = TagScanner(tokenizer)
        self._tools = ToolsReader()
        self._keep_calls = calls
        self._state = "think" if thinking else "response"
        self._may_be_skipped = thinking  # the think channel, which the model has not opened itself
        self._may_be_thinking = not thinking  # the response, of which nothing is shown yet
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._bare = bytearray()  # text behind the think channel and outside a response
        self._blank = ""  # white space at the beginning of the content, until more follows
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self._events: list[Event] = []
        self.ended = False

    @property
    def output(self) -> Output:
        """What has been said so far; complete after `finish`."""
        reasoning, content = "".join(self._reasoning), "".join(self._content)
        return Output(reasoning or None, content or None, tuple(self._calls), self.ended)

    def feed(self, ids: Iterable[int]) -> list[Event]:
        """What became certain with `ids`. Ids behind the end of the turn are passed over."""
        for token_id in ids:
            if self._state == "done":
                break
            for piece in self._scanner.feed(token_id, _SHOWN_TAGS.get(self._state)):
                if isinstance(piece, bytes):
                    self._text(piece)
                elif isinstance(piece, Tag):
                    self._tag(piece)
                else:
                    self._end(ended=True)
        return self._take_events()

    def finish(self) -> list[Event]:
        """No more ids come: what was held back and counts. A tag that was cut off does not."""
        self._end(ended=False)
        return self._take_events()

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # ---- text

    def _text(self, text: bytes) -> None:
        match self._state:
            case "think":
                self._show_reasoning(self._utf8.decode(text))
            case "response":
                self._show_content(self._utf8.decode(text))
            case "between":
                self._bare += text
            case "tools":
                self._tools.text(text)

    def _show_reasoning(self, text: str) -> None:
        if text:
            self._reasoning.append(text)
            self._say(Reasoning(text))

    def _show_content(self, text: str) -> None:
        if not text:
            return
        text = self._blank + text
        if not self._content and not text.strip():
            self._blank = text
            return
        self._blank, self._may_be_thinking = "", False
        self._content.append(text)
        self._say(Content(text))

    def _say(self, more: Reasoning | Content) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, Reasoning | Content) and type(last) is type(more):
            self._events[-1] = type(more)(last.text + more.text)
        else:
            self._events.append(more)

    # ---- tags

    def _tag(self, tag: Tag) -> None:
        """A tag that is none where it stands is text there."""
        match self._state, tag.kind, tag.name:
            case "tools", _, _ if self._tools.inside_value or tag[:2] != ("close", "message"):
                self._tools_tag(tag)
            case _, "close", "message":
                self._end(ended=True)
            case "think" | "between" | "response", "open", "tools":
                self._go_to("tools")
            case "after", "open", "tools" if not self._tools.closed:
                self._go_to("tools")
            case "think", "open", "think":
                self._may_be_skipped = False
            case "think", "close", "think":
                self._go_to("between")
            case "think", "close", "response":
                self._go_to("after")
            case "think", "open", "response":
                self._go_to("response")
            case "between", "open", "response":
                self._bare.clear()
                self._go_to("response")
            case "between", "close", "response":
                pass
            case "response", "close", "response":
                self._go_to("after")
            case "response", "open", "response":
                self._blank = self._blank if self._content else ""
            case "response", "open", "think" if self._may_be_thinking:
                self._blank, self._may_be_thinking = "", False
                self._go_to("think")
            case _:
                self._text(tag.raw)

    def _tools_tag(self, tag: Tag) -> None:
        call = self._tools.tag(tag)
        if call is not None and self._keep_calls:
            self._calls.append(call)
            self._events.append(Called(call))
        if self._tools.closed:
            self._state = "after"

    def _go_to(self, state: str) -> None:
        """Leave the current channel for another."""
        tail = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        if self._state == "think":
            self._show_reasoning(tail)
            if state == "after" and self._may_be_skipped:
                self._withdraw_reasoning()
        elif self._state == "response":
            self._show_content(tail)
        elif self._state == "between":
            self._show_content(self._bare.decode("utf-8", "replace"))
            self._bare.clear()
        self._state = state

    def _withdraw_reasoning(self) -> None:
        text, self._reasoning = "".join(self._reasoning), []
        if text:
            self._events.append(ReasoningWithdrawn())
            self._show_content(text)

    def _end(self, *, ended: bool) -> None:
        if self._state == "done":
            return
        self._go_to("done")
        if self._blank and not self._calls:
            self._content.append(self._blank)
            self._say(Content(self._blank))
        self._blank = ""
        self.ended = ended
