"""Text of a token stream, as soon as it is certain.

Knows: that a character may be spread over several tokens.
Does not know: markers or channels (`output`).
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from kimistream.text.tokenizer import Tokenizer


class StreamingDecoder:
    """Turns ids into text piece by piece; the pieces joined are `Tokenizer.decode` of all ids.

    An incomplete UTF-8 sequence at the end is held back until its bytes arrive or cannot arrive any more.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        """The text that became certain with `ids` (may be empty). Raises `TextError` as decoding does."""
        return self._decoder.decode(self._tokenizer.decode_bytes(ids, skip_special=self._skip_special))

    def flush(self) -> str:
        """The end of the stream: a held back sequence becomes U+FFFD. The decoder can be used again."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
