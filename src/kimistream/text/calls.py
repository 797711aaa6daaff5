"""The tools channel of a model's turn: tags and text to tool calls.

Knows: how calls and arguments nest, how arguments are typed and written as JSON.
Does not know: the other channels (`output`), or which tools there are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kimistream.text.json_text import escape_surrogates, parse_strict, spaced
from kimistream.text.markers import Tag
from kimistream.text.xtml import read_attributes


class ToolCall(msgspec.Struct, frozen=True):
    """A call of the tool `name`; `arguments` is JSON text, or what the model wrote in place of it."""

    name: str
    arguments: str


class CallDraft:
    """A call that is being read.

    An argument of type `string`, or without a type, is its text as it stands; of every other type it is read
    as JSON and, when it is none, taken as a string. NaN and infinite numbers are no JSON, since what a
    client reads has to be. Of arguments with the same key the last counts, in the place of the first.
    A `json` block is the whole of the arguments; it counts only when there are no single ones.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._arguments: dict[str, Any] = {}
        self._block: str | None = None

    def add_argument(self, key: str, kind: str, text: str) -> None:
        """A complete `argument` element."""
        value: Any = text
        if kind != "string":
            try:
                value = parse_strict(text)
            except ValueError:
                value = text
        self._arguments[key] = value

    def add_block(self, text: str) -> None:
        """A complete `json` element."""
        self._block = text

    def call(self) -> ToolCall:
        """The call, at its end."""
        if self._block is not None and not self._arguments:
            try:
                arguments = parse_strict(self._block)
            except ValueError:
                arguments = None
            if not isinstance(arguments, dict):
                return ToolCall(self.name, self._block)
            return ToolCall(self.name, _write(arguments))
        return ToolCall(self.name, _write(self._arguments))


class ToolsReader:
    """Reads the inside of the tools channel, and gives out calls as they are complete.

    Text between calls and between arguments is passed over, and so are calls without a name and whatever
    is not complete when the element around it ends.
    """

    def __init__(self) -> None:
        self._draft: CallDraft | None = None
        self._element: Tag | None = None  # the argument or json block that is being read
        self._body = bytearray()
        self.closed = False

    @property
    def inside_value(self) -> bool:
        """Whether a value is being read, in which tags of other kinds are text."""
        return self._element is not None

    def text(self, text: bytes) -> None:
        """Text; only that of a value is kept."""
        if self._element is not None:
            self._body += text

    def tag(self, tag: Tag) -> ToolCall | None:
        """A tag; the call that it completes, if any. `closed` is set when it ends the channel."""
        if self._element is not None and tag[:2] not in (("close", self._element.name), *_AROUND_VALUE):
            self._body += tag.raw
            return None
        match tag.kind, tag.name:
            case "open", "call":
                self._draft = CallDraft(read_attributes(tag.attributes).get("tool", ""))
            case "open", "argument" | "json" if self._draft is not None:
                self._element, self._body = tag, bytearray()
            case "close", "argument" | "json" if self._element is not None:
                self._end_value(self._element)
            case "close", "call":
                draft, self._draft, self._element = self._draft, None, None
                return draft.call() if draft is not None and draft.name else None
            case "close", "tools":
                self._draft, self._element, self.closed = None, None, True
        return None

    def _end_value(self, element: Tag) -> None:
        attributes, text = read_attributes(element.attributes), self._body.decode("utf-8", "replace")
        self._element = None
        if self._draft is None:
            return
        if element.name == "json":
            self._draft.add_block(text)
        elif "key" in attributes:
            self._draft.add_argument(attributes["key"], attributes.get("type", "string"), text)


_AROUND_VALUE = (("close", "call"), ("close", "tools"))


def call_id(call: ToolCall, number: int) -> str:
    """An id for a call: its tool's name and the `number` of calls before it in the conversation."""
    return f"{call.name}:{number}"


def _write(arguments: dict[str, Any]) -> str:
    return escape_surrogates(spaced(arguments, "arguments"))
