"""A plain continuation while it arrives: token ids to text, and when a stop string ends it.

Knows: text that is held back, until a character is whole or it cannot be a stop string any more.
Does not know: conversations (answer).
"""

from __future__ import annotations

from kimistream.engine.options import SamplingOptions
from kimistream.engine.stop import StopStrings
from kimistream.text.decoder import StreamingDecoder
from kimistream.text.tokenizer import Tokenizer


class TextReader:
    """Turns the ids of one continuation into text; the pieces joined are the whole of it."""

    def __init__(self, tokenizer: Tokenizer, options: SamplingOptions) -> None:
        self._decoder = StreamingDecoder(tokenizer)
        self._stops = StopStrings(options.stop, include=options.include_stop)
        self._unwatched = options.min_tokens
        self._count = 0

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text."""
        return self._stops.matched

    def feed(self, token_id: int) -> str:
        """The text that became certain with one more token."""
        self._count += 1
        return self._stops.feed(self._decoder.feed([token_id]), watch=self._count > self._unwatched)

    def finish(self) -> str:
        """No more tokens come: what was held back."""
        return self._stops.feed(self._decoder.flush()) + self._stops.finish()
