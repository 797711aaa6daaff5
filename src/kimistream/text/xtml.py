"""The markup of Kimi K3's conversations: segments, and the tags made of them.

Knows: the four marker tokens, how a tag with attributes is put together, how attributes are escaped.
Does not know: messages, or which tags there are.

A prompt is a list of segments, each encoded by itself. Only markers and image prompts are special
segments; everything else, also tag names and keys, is plain text in which a marker's spelling stays plain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from kimistream.text.tokenizer import Tokenizer

OPEN = "<|open|>"
CLOSE = "<|close|>"
SEP = "<|sep|>"
END_OF_MESSAGE = "<|end_of_msg|>"

_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')


class Segment(NamedTuple):
    """A stretch of a prompt: when `special`, spellings of special tokens in `text` become their ids."""

    text: str
    special: bool = False


def plain(text: str) -> list[Segment]:
    """A plain segment, or none for the empty text."""
    return [Segment(text)] if text else []


def open_tag(tag: str, attributes: Iterable[tuple[str, object]] = ()) -> list[Segment]:
    """The start of an element; values are written with `str` and escaped, keys are not."""
    segments = [Segment(OPEN, True), Segment(tag)]
    for key, value in attributes:
        segments += [Segment(f" {key}"), Segment('="'), *plain(escape(str(value))), Segment('"')]
    segments.append(Segment(SEP, True))
    return segments


def close_tag(tag: str) -> list[Segment]:
    """The end of an element."""
    return [Segment(CLOSE, True), Segment(tag), Segment(SEP, True)]


def message(attributes: Iterable[tuple[str, object]], body: Iterable[Segment]) -> list[Segment]:
    """A whole message: its element and the marker that ends a turn."""
    return [
        *open_tag("message", attributes),
        *body,
        *close_tag("message"),
        Segment(END_OF_MESSAGE, True),
    ]


def escape(value: str) -> str:
    """An attribute's value as it is written."""
    return value.replace("&", "&amp;").replace('"', "&quot;")


def unescape(value: str) -> str:
    """The inverse of `escape`."""
    return value.replace("&quot;", '"').replace("&amp;", "&")


def read_attributes(text: str) -> dict[str, str]:
    """The attributes in `text`, the part of a tag behind its name; what is no attribute is passed over."""
    return {key: unescape(value) for key, value in _ATTRIBUTE.findall(text)}


def text_of(segments: Iterable[Segment]) -> str:
    """The segments' texts joined: what `kimistream render` shows."""
    return "".join(segment.text for segment in segments)


def encode_segments(tokenizer: Tokenizer, segments: Iterable[Segment]) -> list[int]:
    """The ids of `segments`, each encoded by itself.

    Raises `TextError` when the vocabulary has no token for a marker, instead of writing it as text.
    """
    ids: list[int] = []
    for segment in segments:
        if segment.special:
            for name in _markers_in(segment.text):
                tokenizer.special_id(name)
        ids += tokenizer.encode(segment.text, special=segment.special)
    return ids


def _markers_in(text: str) -> list[str]:
    return re.findall(r"<\|\w+\|>", text)
