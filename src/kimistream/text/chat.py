"""A conversation as the prompt that Kimi K3 was trained to continue.

Knows: the order of a prompt's parts and what each role's message needs from those before it.
Does not know: how a part is worded (`prompts`, `messages`), or ids (`xtml.encode_segments`).

What is written, in this order: the tool declaration, the thinking effort, the messages, the tool choice,
the response format, and the beginning of the assistant's turn. Texts that come from outside (contents,
names, arguments, tool names) are always plain segments, so whatever they spell can never become structure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kimistream.errors import TextError
from kimistream.text.images import ImagePlaces
from kimistream.text.messages import Message, assistant_message, call_name, said_message, tool_message
from kimistream.text.prompts import (
    effort_message,
    response_format_message,
    tool_choice_message,
    tool_declaration,
)
from kimistream.text.tokenizer import Tokenizer
from kimistream.text.tool_results import in_call_order, role_of
from kimistream.text.xtml import Segment, encode_segments, open_tag

ROLES = ("system", "user", "assistant", "tool")


def render(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    thinking: bool = True,
    thinking_effort: str | None = "max",
    add_generation_prompt: bool = True,
    tool_choice: object = None,
    response_format: object = None,
    response_schema: object = None,
    image_prompts: Sequence[str] | None = None,
) -> list[Segment]:
    """The segments of a conversation of OpenAI-style `messages`.

    `thinking_effort` is low, high or max; None says nothing about it, and without `thinking` it is
    ignored. `tool_choice` and `response_format` are OpenAI's; `response_schema` overrides the schema in the
    latter. `image_prompts` (see `images`) fill the places of images in document order.

    As in the released code, messages of unknown roles are passed over; `strict_messages` refuses them.
    Raises `TextError` that names the message for everything that cannot be written.
    """
    images = ImagePlaces(image_prompts)
    segments: list[Segment] = []
    if tools:
        segments += tool_declaration(tools)
    if thinking and thinking_effort is not None:
        segments += effort_message(thinking_effort)
    segments += _history(messages, thinking, images)
    segments += tool_choice_message(tool_choice)
    segments += response_format_message(response_format, response_schema)
    if add_generation_prompt:
        segments += open_tag("message", (("role", "assistant"),))
        segments += open_tag("think" if thinking else "response")
    images.finish()
    return segments


def encode_chat(tokenizer: Tokenizer, messages: Sequence[Message], **options: Any) -> list[int]:
    """The ids of `render(messages, **options)`."""
    return encode_segments(tokenizer, render(messages, **options))


def strict_messages(messages: Sequence[Any]) -> list[Message]:
    """The messages with `developer` taken as `system`; `TextError` for any role that `render` would drop."""
    checked: list[Message] = []
    for position, entry in enumerate(messages):
        role = role_of(entry)
        if role == "developer":
            role = "system"
            entry = {**entry, "role": role}
        if role not in ROLES:
            raise TextError(
                f"messages[{position}] has the role {role!r}",
                f"A message is an object whose role is developer, {', '.join(ROLES)}.",
            )
        checked.append(entry)
    return checked


def _history(messages: Sequence[Message], thinking: bool, images: ImagePlaces) -> list[Segment]:
    segments: list[Segment] = []
    calls: Any = None  # of the last assistant message
    results = 0  # tool messages since then
    for position, entry in enumerate(in_call_order(messages)):
        role, where = role_of(entry), f"messages[{position}]"
        if role == "system" and entry.get("tools"):
            segments += tool_declaration(entry["tools"], dynamic=True)
        elif role in ("system", "user"):
            segments += said_message(entry, role, images, where)
        elif role == "assistant":
            segments += assistant_message(entry, thinking, images, where)
            calls, results = entry.get("tool_calls") or [], 0
        elif role == "tool":
            results += 1
            name = _tool_name(entry, calls, results, where)
            segments += tool_message(entry, name, results, images, where)
    return segments


def _tool_name(entry: Message, calls: Any, index: int, where: str) -> object:
    for key in ("tool", "name"):
        if entry.get(key) is not None:
            return entry[key]
    if calls and index <= len(calls):
        return call_name(calls[index - 1], f"the call that {where} answers")
    raise TextError(
        f"{where} is a tool result without a tool: it has no name, and there are {len(calls or [])} calls"
        f" for {index} results",
        "Give it a name, or the tool_call_id of a call in the assistant message before it.",
    )
