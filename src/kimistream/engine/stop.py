"""Stop strings in a text that comes in pieces.

Knows: the strings, and how much of the text so far may be the beginning of one.
Does not know: tokens, or where the text comes from.

The text ends at the stop string that is complete first; of several complete at the same character, at the
longest. That depends on the text alone, not on where it is cut into pieces. Text is held back only as long as
it may turn out to be the beginning of a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text through until a stop string is complete.

    include: whether the stop string itself is passed through as well.
    """

    def __init__(self, strings: Sequence[str], *, include: bool = False) -> None:
        self._strings = tuple(strings)
        self._include = include
        self._longest = max((len(s) for s in self._strings), default=0)
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    @property
    def held(self) -> str:
        """Text that is held back."""
        return self._held

    def feed(self, piece: str, *, watch: bool = True) -> str:
        """Take the next piece of text; the text that is now certain.

        watch=False lets a piece through unseen (an answer shorter than min_tokens): no stop string may begin
        or end in it. After a match nothing comes any more.
        """
        if self.matched is not None:
            return ""
        text = self._held + piece
        if not watch:
            self._held = ""
            return text
        ends = [(start + len(s), start, s) for s in self._strings if (start := text.find(s)) >= 0]
        if ends:
            end, start, self.matched = min(ends)
            self._held = ""
            return text[: end if self._include else start]
        sure = self._sure(text)
        self._held = text[sure:]
        return text[:sure]

    def finish(self) -> str:
        """The text ended otherwise: what was held back."""
        text, self._held = self._held, ""
        return text

    def _sure(self, text: str) -> int:
        """The length of the text before the first possible beginning of a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if any(s.startswith(text[start:]) for s in self._strings):
                return start
        return len(text)
