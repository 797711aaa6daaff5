"""Text to token ids and back, as the released tokenizer does it.

Knows: the split pattern, the two encoding modes, the byte strings behind ids.
Does not know: conversations (`chat`), nor where the ids go.

Merging is tiktoken's byte-level BPE: inside one split of the text, the adjacent pair whose concatenation
has the lowest rank is merged first. Special tokens are recognised in the text only when the caller asks
for it; text that a user typed is encoded without.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import tiktoken

from kimistream.errors import TextError
from kimistream.text.pieces import pieces
from kimistream.text.vocabulary import NAMES_FILE, Vocabulary, read_vocabulary

# Alternatives in order of preference: Han runs; words with and without a lower-case part (one leading
# sign or space, an English contraction behind); up to three digits; signs; line ends; white space.
SPLIT_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

# A turn ends with either of the first two; the third is harmless to stop on as well.
STOP_NAMES = ("<|end_of_msg|>", "[EOS]", "[EOT]")


class Tokenizer:
    """The vocabulary of one checkpoint. Make it with `Tokenizer.from_directory`; the constructor empties
    the ranks it is given.

    `vocab_size` counts all ids, `base_size` those that are not special; `special` maps the 256 special
    spellings to their ids base_size..vocab_size-1.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.base_size = len(vocabulary.ranks)
        self.special = vocabulary.special
        self.vocab_size = self.base_size + len(self.special)
        self._names = {token_id: name.encode() for name, token_id in self.special.items()}
        self._hidden = vocabulary.hidden
        self._encoding = tiktoken.Encoding(
            "kimistream", pat_str=SPLIT_PATTERN, mergeable_ranks=vocabulary.ranks, special_tokens=self.special
        )
        # The encoder has its own copy by now and needs this one for pickling only: 20 MB less.
        vocabulary.ranks.clear()
        self._all_special = frozenset(self.special)

    @classmethod
    def from_directory(cls, directory: str | Path, vocab_size: int) -> Tokenizer:
        """Read `tiktoken.model` and `tokenizer_config.json` of `directory`.

        `vocab_size` is the config's. Raises `TextError` when a file is missing, malformed, or does not
        fit the other or the config.
        """
        return cls(read_vocabulary(Path(directory), vocab_size))

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of `text`; with `special`, spellings of special tokens become their ids.

        Without it the result never holds a special id. No begin or end token is added. Lone surrogates,
        which are no characters, are encoded as U+FFFD.
        """
        if special:
            alone = self.special.get(text)
            if alone is not None:
                return [alone]
        ids: list[int] = []
        for piece in pieces(text):
            if special:
                ids += self._encoding.encode(piece, allowed_special=self._all_special, disallowed_special=())
            else:
                ids += self._encoding.encode_ordinary(piece)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one id stands for: a special id's are its spelling. Raises `TextError`."""
        name = self._names.get(token_id)
        if name is not None:
            return name
        try:
            return self._encoding.decode_single_token_bytes(token_id)
        except (KeyError, OverflowError):
            raise TextError(
                f"token id {token_id} is outside the vocabulary, whose ids are 0 to {self.vocab_size - 1}",
                "Check that the ids were made with this checkpoint's tokenizer.",
            ) from None

    def decode_bytes(self, ids: Iterable[int], *, skip_special: bool = False) -> bytes:
        """The bytes of `ids`, joined; `skip_special` leaves out the ids that the vocabulary flags.

        (The markers that structure a message are not flagged, the end of a message is.) Raises
        `TextError` for an id outside the vocabulary.
        """
        return b"".join(
            self.token_bytes(token_id) for token_id in ids if not (skip_special and token_id in self._hidden)
        )

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of `ids`; byte sequences that are not UTF-8 become U+FFFD. See `decode_bytes`."""
        return self.decode_bytes(ids, skip_special=skip_special).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        """Whether the id lies in the special block (flagged or not)."""
        return self.base_size <= token_id < self.vocab_size

    def is_hidden(self, token_id: int) -> bool:
        """Whether `skip_special` leaves this id out."""
        return token_id in self._hidden

    def special_id(self, name: str) -> int:
        """The id of a special spelling. Raises `TextError` when this vocabulary has no such token."""
        try:
            return self.special[name]
        except KeyError:
            raise TextError(
                f"the vocabulary has no special token {name!r}",
                f"Conversations need the names of Kimi K3 in {NAMES_FILE}; plain text works without.",
            ) from None

    @property
    def stop_ids(self) -> frozenset[int]:
        """The ids that end an assistant's turn, as far as this vocabulary names them."""
        return frozenset(self.special[name] for name in STOP_NAMES if name in self.special)
