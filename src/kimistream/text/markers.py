"""Tags in a stream of token ids.

Knows: that a tag is a marker id, ordinary tokens that name it, and a separator id.
Does not know: which tags mean something where (`output`).

A tag counts only when its markers are ids. The same characters typed as text are other ids, and stay text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kimistream.text.tokenizer import Tokenizer
from kimistream.text.xtml import CLOSE, OPEN, SEP

_HEADER = re.compile(r"\s*(\w+)(.*)", re.DOTALL)


class Tag(NamedTuple):
    """A whole tag: `open` or `close` with its name, its unread attributes, and its bytes as text."""

    kind: str
    name: str
    attributes: str
    raw: bytes


class End(NamedTuple):
    """An id that ends the assistant's turn."""


class TagScanner:
    """Cuts ids into text and tags. A tag is held back until its separator comes.

    A marker that does not become a tag is text: when another marker or a separator without a name follows,
    and, with `feed(..., names)`, as soon as what stands behind it cannot become one of the names.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._kinds = {tokenizer.special_id(OPEN): "open", tokenizer.special_id(CLOSE): "close"}
        self._separator = tokenizer.special_id(SEP)
        self._ends = tokenizer.stop_ids
        self._kind: str | None = None  # of the tag that is being read
        self._raw = bytearray()
        self._header = bytearray()

    def feed(self, token_id: int, names: frozenset[tuple[str, str]] | None) -> list[bytes | Tag | End]:
        """What has become certain with this id.

        `names` are the (kind, name) pairs without attributes that would be tags here; None: any could be.
        """
        if token_id in self._ends:
            return [End()]
        spelling = self._tokenizer.token_bytes(token_id)
        if token_id in self._kinds:
            text = self._give_up()
            self._kind, self._raw = self._kinds[token_id], bytearray(spelling)
            return text
        if self._kind is None:
            return [spelling]
        self._raw += spelling
        if token_id == self._separator:
            tag = self._tag()
            return [tag] if tag else self._give_up()
        self._header += spelling
        if names is not None and not any(
            kind == self._kind and _may_become(self._header, name.encode()) for kind, name in names
        ):
            return self._give_up()
        return []

    def _tag(self) -> Tag | None:
        match = _HEADER.fullmatch(self._header.decode("utf-8", "replace"))
        if match is None or self._kind is None:
            return None
        return Tag(self._kind, match[1], match[2], self._forget())

    def _give_up(self) -> list[bytes | Tag | End]:
        raw = self._forget()
        return [raw] if raw else []

    def _forget(self) -> bytes:
        raw = bytes(self._raw)
        self._kind, self._raw, self._header = None, bytearray(), bytearray()
        return raw


def _may_become(header: bytearray, name: bytes) -> bool:
    """Whether more bytes can make `header` the name with white space around it."""
    begun = header.lstrip()
    return name.startswith(begun) or begun.rstrip() == name
