"""The messages that the format itself writes: tools, thinking effort, tool choice, response format.

Knows: their wording, which is part of what the model was trained on.
Does not know: the user's messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kimistream.errors import TextError
from kimistream.text.json_text import compact
from kimistream.text.xtml import Segment, message, plain

EFFORTS = ("low", "high", "max")

_TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n\n"
_MORE_TOOLS = (
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n"
)
_EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response"
    " channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`."
)
_TOOL_CHOICE = {
    "required": "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
    "none": "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
}
_RESPONSE_FORMAT = (
    "The system is invoked with `response_format={}`.\nYour response must be raw JSON data without markdown"
    " code blocks (```json) or any additional formatting."
)
_SCHEMA = "\nThe JSON data must match the following schema:\n"


def tool_declaration(tools: object, *, dynamic: bool = False) -> list[Segment]:
    """The declaration of `tools`, a list; `dynamic` for tools that a later system message adds.

    Raises `TextError` when it is no list or cannot be written as JSON.
    """
    if not isinstance(tools, (list, tuple)):
        raise TextError(
            f"tools has to be a list of declarations, not {type(tools).__name__}",
            'A declaration looks like {"type": "function", "function": {"name": ..., "parameters": ...}}.',
        )
    return _system("tool-declare", (_MORE_TOOLS if dynamic else _TOOLS) + _fenced(tools, "tools"))


def effort_message(effort: str) -> list[Segment]:
    """How much to think. Raises `TextError` for a value that the model does not know.

    (`medium` is named in the prompt's own text, but the released code does not accept it.)
    """
    if effort not in EFFORTS:
        raise TextError(
            f"thinking effort {effort!r} is not one of {', '.join(EFFORTS)}",
            "Choose one of them, or none to leave the effort to the model.",
        )
    return _system("thinking-effort", _EFFORT.format(effort))


def tool_choice_message(choice: object) -> list[Segment]:
    """What `required` and `none` ask of the model; every other choice writes nothing."""
    if not isinstance(choice, str) or choice not in _TOOL_CHOICE:
        return []
    return _system("tool-choice", _TOOL_CHOICE[choice])


def response_format_message(response_format: object, response_schema: object = None) -> list[Segment]:
    """What `json_object` and `json_schema` ask of the model; every other format writes nothing.

    `response_format` is OpenAI's object or its bare `type`. The schema is `response_schema` when given,
    else `json_schema.schema`, else `json_schema.json_schema`, else `json_schema` itself.
    """
    kind = response_format.get("type") if isinstance(response_format, Mapping) else response_format
    if kind == "json_object":
        return _system("response-format", _RESPONSE_FORMAT.format(kind))
    if kind == "json_schema":
        if response_schema is None and isinstance(response_format, Mapping):
            response_schema = _schema_of(response_format.get("json_schema"))
        body = _RESPONSE_FORMAT.format(kind) + _SCHEMA + _fenced(response_schema, "response_format")
        return _system("response-format", body)
    return []


def thinking_options(reasoning_effort: str) -> tuple[bool, str | None]:
    """(thinking, thinking_effort) for an API's `reasoning_effort`: low, high, max, or none.

    Raises `TextError` for other values.
    """
    if reasoning_effort == "none":
        return False, None
    if reasoning_effort not in EFFORTS:
        raise TextError(
            f"reasoning effort {reasoning_effort!r} is not one of none, {', '.join(EFFORTS)}",
            "Use high for medium, max for anything above high.",
        )
    return True, reasoning_effort


def _schema_of(json_schema: Any) -> object:
    if not isinstance(json_schema, Mapping):
        return json_schema
    return json_schema.get("schema", json_schema.get("json_schema", json_schema))


def _fenced(value: object, what: str) -> str:
    return f"```json\n{compact(value, what)}\n```"


def _system(kind: str, body: str) -> list[Segment]:
    return message((("role", "system"), ("type", kind)), plain(body.strip()))
