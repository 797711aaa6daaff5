"""`kimistream render`: the prompt of a conversation, for looking at its segments and ids.

Knows: how segments are shown.
Does not know: how messages become segments (text.chat).
"""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

from cyclopts import Parameter

from kimistream.cli.files import read_format, read_messages, read_tools
from kimistream.cli.tokenize import open_tokenizer


def render(
    checkpoint: str,
    /,
    *,
    messages: str,
    tools: str | None = None,
    format: str | None = None,
    think: str = "max",
    text: Annotated[bool, Parameter(negative=())] = False,
    ids: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Show the prompt that a conversation becomes: one segment a line, with its ids.

    A line that begins with `*` is a marker; all others are text, whatever they spell.

    Parameters
    ----------
    checkpoint
        A directory with `config.json` and the tokenizer's files, or `demo`.
    messages
        A JSON file with a list of messages, or an object with `messages`; `-` reads standard input.
    tools
        A JSON file with a list of tools.
    format
        `json`, or the file of a JSON schema that the answer shall follow.
    think
        How much to think before the answer: low, high, max or off.
    text
        Only the prompt's text.
    ids
        Only the ids, in one line, as `run --ids` takes them.
    """
    from kimistream.engine.thinking import OFF, checked_think
    from kimistream.text.chat import render as segments_of
    from kimistream.text.chat import strict_messages
    from kimistream.text.xtml import encode_segments, text_of

    given = read_messages(messages)
    declared = read_tools(tools) if tools is not None else given.get("tools")
    wanted = read_format(format) if format is not None else given.get("response_format")
    thinking = checked_think(think, "--think") != OFF
    tokenizer = open_tokenizer(checkpoint)
    segments = segments_of(
        strict_messages(given["messages"]),
        declared,
        thinking=thinking,
        thinking_effort=think if thinking else None,
        tool_choice=given.get("tool_choice"),
        response_format=wanted,
    )
    tokens = encode_segments(tokenizer, segments)
    if text:
        print(text_of(segments))
        return
    if ids:
        print(",".join(map(str, tokens)))
        return
    for segment in segments:
        spelled = jsonlib.dumps(segment.text, ensure_ascii=False)
        numbers = " ".join(map(str, encode_segments(tokenizer, [segment])))
        print(f"{'*' if segment.special else ' '} {spelled}  {numbers}")
    print(f"{len(segments)} segments, {len(tokens)} tokens")
