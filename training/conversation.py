"""Conversations in K3's format as pieces of text, each marked: a special spelling or not, trained or not.

Knows: the frames, the declarations and the tool calls, as far as the training data uses them (the tests
compare with the package's own renderer). Does not know: what is talked about (`talk`), tokens.

It exists beside `kimistream.text` because training has to know which pieces the model writes itself.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"


class Piece(NamedTuple):
    """`target`: the model has to write it."""

    text: str
    special: bool
    target: bool


class Writer:
    """Collects pieces; `target` says whether the following ones are the model's own."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.target = False

    def special(self, text: str) -> None:
        self.pieces.append(Piece(text, True, self.target))

    def plain(self, text: str) -> None:
        if text:
            self.pieces.append(Piece(text, False, self.target))

    def open(self, tag: str, **attributes: str) -> None:
        self.special(OPEN)
        self.plain(tag)
        for key, value in attributes.items():
            self.plain(f" {key}")
            self.plain('="')
            self.plain(str(value).replace("&", "&amp;").replace('"', "&quot;"))
            self.plain('"')
        self.special(SEP)

    def close(self, tag: str) -> None:
        self.special(CLOSE)
        self.plain(tag)
        self.special(SEP)

    def end(self) -> None:
        self.close("message")
        self.special(END)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for types, name in (((int, float), "number"), (str, "string"), (list, "array"), (dict, "object")):
        if isinstance(value, types):
            return name
    return "null"


def _system(out: Writer, kind: str, body: str) -> None:
    out.open("message", role="system", type=kind)
    out.plain(body)
    out.end()


def _json_wanted(out: Writer) -> None:
    _system(
        out,
        "response-format",
        "The system is invoked with `response_format=json_object`.\nYour response must be raw JSON data"
        " without markdown code blocks (```json) or any additional formatting.",
    )


def _assistant(out: Writer, message: dict[str, Any], thinking: bool) -> None:
    out.open("message", role="assistant")
    out.open("think" if thinking else "response")
    out.target = True
    if thinking:
        out.plain(message.get("reasoning_content", ""))
        out.close("think")
        out.open("response")
    out.plain(message.get("content", ""))
    out.close("response")
    calls = message.get("tool_calls") or []
    if calls:
        out.open("tools")
        for number, call in enumerate(calls, start=1):
            out.open("call", tool=call["function"]["name"], index=str(number))
            for key, value in call["function"]["arguments"].items():
                out.open("argument", key=key, type=_kind(value))
                out.plain(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
                out.close("argument")
            out.close("call")
        out.close("tools")
    out.end()
    out.target = False


def render(
    messages: list[dict[str, Any]],
    *,
    tools: list[dict[str, Any]] | None = None,
    thinking: bool = True,
    effort: str = "max",
    json_answer: bool = False,
    generate: bool = False,
) -> list[Piece]:
    """The pieces of a conversation; with `generate`, followed by the beginning of an assistant's turn.

    Messages are as for the package's renderer; only what the training data uses is understood. A wish for
    JSON stands before the turn that answers it: the last one, or the one to come.
    """
    out = Writer()
    if tools:
        text = json.dumps(_sorted(tools), ensure_ascii=False, separators=(",", ":"))
        head = "# Tools\nHere are the available tools, described in JSONSchema.\n\n"
        _system(out, "tool-declare", f"{head}```json\n{text}\n```")
    if thinking:
        _system(
            out,
            "thinking-effort",
            "`thinking_effort` guides on how much to think in your thinking channel (not including the response"
            " channel), supported values include `low`, `medium`, `high`, and `max`.\n"
            f"Now the system is invoked with `thinking_effort={effort}`.",
        )
    results = 0
    for number, message in enumerate(messages):
        role = message["role"]
        if role == "assistant":
            if json_answer and number == len(messages) - 1:
                _json_wanted(out)
            _assistant(out, message, thinking)
            results = 0
            continue
        attributes = {"role": role}
        if role == "tool":
            results += 1
            attributes |= {"tool": message["name"], "index": str(results)}
        out.open("message", **attributes)
        out.plain(message["content"])
        out.end()
    if generate:
        if json_answer:
            _json_wanted(out)
        out.open("message", role="assistant")
        out.open("think" if thinking else "response")
    return out.pieces
