"""One message of a conversation as segments, for each role.

Knows: what a message of each role may hold and how that is written.
Does not know: what stands before or behind it, except the calls that a tool result answers (`chat`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kimistream.errors import TextError
from kimistream.text.images import ImagePlaces
from kimistream.text.json_text import parse, spaced
from kimistream.text.tool_results import call_function
from kimistream.text.xtml import Segment, close_tag, message, open_tag

Message = Mapping[str, Any]


def said_message(entry: Message, role: str, images: ImagePlaces, where: str) -> list[Segment]:
    """A `system` or `user` message. `where` names the message in a `TextError`."""
    return message(_role(entry, role), _content(entry, images, where))


def tool_message(entry: Message, name: object, index: int, images: ImagePlaces, where: str) -> list[Segment]:
    """A tool's result: `name` of the tool, `index` of the result in its round (from 1)."""
    attributes = (("role", "tool"), ("tool", name), ("index", index))
    return message(attributes, _content(entry, images, where))


def assistant_message(entry: Message, thinking: bool, images: ImagePlaces, where: str) -> list[Segment]:
    """An assistant's turn: reasoning (only with `thinking`, then also when empty), response, calls."""
    body: list[Segment] = []
    if thinking:
        body += [*open_tag("think"), *_reasoning(entry, images, where), *close_tag("think")]
    body += [*open_tag("response"), *_content(entry, images, where), *close_tag("response")]
    calls = entry.get("tool_calls")
    if calls:
        body += open_tag("tools")
        for index, call in enumerate(_list(calls, f"{where}.tool_calls"), start=1):
            body += _call(call, index, images, f"{where}.tool_calls[{index - 1}]")
        body += close_tag("tools")
    return message(_role(entry, "assistant"), body)


def call_name(call: object, where: str) -> str:
    """The name of the function that a call is for. Raises `TextError` when there is none."""
    return str(_function(call, where)["name"])


def _function(call: object, where: str) -> Message:
    function = call_function(call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or function.get("name") is None:
        raise TextError(
            f"{where} has no function name; it is {str(call)[:60]}",
            'A call looks like {"id": ..., "function": {"name": ..., "arguments": ...}}.',
        )
    return function


def _role(entry: Message, role: str) -> list[tuple[str, object]]:
    name = entry.get("name")
    return [("role", role), ("name", name)] if name else [("role", role)]


def _content(entry: Message, images: ImagePlaces, where: str) -> list[Segment]:
    content = entry.get("content")
    if content is None:
        return []
    if isinstance(content, str):
        return images.text(content)
    segments: list[Segment] = []
    for number, part in enumerate(_list(content, f"{where}.content")):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in ("image", "image_url"):
            segments += images.place()
            continue
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            raise TextError(
                f"{where}.content[{number}] of type {kind!r} is neither an image nor a text",
                'Parts are {"type": "text", "text": ...} or {"type": "image_url", ...}.',
            )
        segments += images.text(text)
    return segments


def _reasoning(entry: Message, images: ImagePlaces, where: str) -> list[Segment]:
    reasoning = entry.get("reasoning_content") or entry.get("reasoning")
    if not reasoning:
        return []
    if not isinstance(reasoning, str):
        raise TextError(
            f"{where}.reasoning_content has to be a text, not {type(reasoning).__name__}",
            "Give the text, or leave it out.",
        )
    return images.text(reasoning) if reasoning.strip() else []


def _call(call: object, index: int, images: ImagePlaces, where: str) -> list[Segment]:
    function = _function(call, where)
    segments = open_tag("call", (("tool", function["name"]), ("index", index)))
    arguments = _arguments(function.get("arguments"), where)
    if isinstance(arguments, str):
        segments += open_tag("json", (("type", "object"),))
        segments += [*images.text(arguments), *close_tag("json")]
        return segments + close_tag("call")
    for key, value in arguments.items():
        kind = json_type(value, f"{where}.arguments[{key!r}]")
        text = value if isinstance(value, str) else spaced(value, f"{where}.arguments[{key!r}]")
        segments += open_tag("argument", (("key", key), ("type", kind)))
        segments += [*images.text(text), *close_tag("argument")]
    return segments + close_tag("call")


def _arguments(given: object, where: str) -> Mapping[str, Any] | str:
    """The arguments of a call; a text that is no JSON comes back as it is."""
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}
    value = given
    if isinstance(given, str):
        try:
            value = parse(given)
        except ValueError:
            return given
    if not isinstance(value, Mapping):
        raise TextError(
            f"{where}: arguments have to be an object or the text of a JSON object,"
            f" not {json_type(value, where)}",
            "Without arguments leave them out, or give {}.",
        )
    return value


def json_type(value: object, where: str) -> str:
    """The name of a JSON value's type as arguments state it. Raises `TextError` for other values."""
    for kind, types in _TYPES:
        if isinstance(value, types):
            return kind
    raise TextError(
        f"{where} is a {type(value).__name__}, which is no JSON value",
        "Use objects with text keys, arrays, texts, numbers, true, false and null.",
    )


# bool before number: Python's bool is an int.
_TYPES: tuple[tuple[str, type | tuple[type, ...]], ...] = (
    ("boolean", bool),
    ("null", type(None)),
    ("number", (int, float)),
    ("string", str),
    ("object", dict),
    ("array", (list, tuple)),
)


def _list(value: Any, where: str) -> Iterable[Any]:
    if not isinstance(value, (list, tuple)):
        raise TextError(
            f"{where} has to be a list, not {type(value).__name__}", "Write [...], or leave it out."
        )
    return value
