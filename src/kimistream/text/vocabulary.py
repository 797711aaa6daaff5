"""The two vocabulary files of a checkpoint, read and checked: `tiktoken.model` and `tokenizer_config.json`.

Knows: the rank file's lines, the 256 special ids behind the base tokens, what has to hold between both
files and the config's `vocab_size`.
Does not know: how text is split or merged (`tokenizer`).

`tiktoken.model` holds one base token per line, `base64(bytes) SPACE rank`; ids are ranks 0..n-1. The next
256 ids are special. `tokenizer_config.json` names some of them in `added_tokens_decoder`; every other one
is spelled `<|reserved_token_ID|>`.
"""

from __future__ import annotations

import shlex
from binascii import Error as Base64Error
from binascii import a2b_base64
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import msgspec

from kimistream.errors import TextError

RANK_FILE = "tiktoken.model"
NAMES_FILE = "tokenizer_config.json"
NUM_SPECIAL = 256


def _fetch_again(path: Path) -> str:
    where = f"{shlex.quote(str(path.parent))} --files {path.name}"
    return f"Fetch it again, for Kimi K3 with: kimistream pull moonshotai/Kimi-K3 {where}"


class Vocabulary(msgspec.Struct, frozen=True):
    """Base tokens and special tokens of one checkpoint.

    `ranks` maps a base token's bytes to its id (0..n-1), `special` a special token's spelling to its id
    (n..n+255), and `hidden` holds the ids that "skip special tokens" decoding leaves out: those that
    `tokenizer_config.json` flags as special.
    """

    ranks: dict[bytes, int]
    special: dict[str, int]
    hidden: frozenset[int]


class _AddedToken(msgspec.Struct):
    content: str
    special: bool = False


class _NamesFile(msgspec.Struct):
    added_tokens_decoder: dict[int, _AddedToken]


def read_vocabulary(directory: Path, vocab_size: int) -> Vocabulary:
    """Read and check both files of `directory` against the config's `vocab_size`.

    Raises `TextError` when a file is missing or malformed, when ranks are not 0..n-1, when n + 256 is not
    `vocab_size`, or when a special token lies outside its block.
    """
    rank_path, names_path = directory / RANK_FILE, directory / NAMES_FILE
    ranks = _read_ranks(rank_path)
    base = len(ranks)
    if base + NUM_SPECIAL != vocab_size:
        raise TextError(
            f"{rank_path} holds {base:,} tokens, with {NUM_SPECIAL} special ids {base + NUM_SPECIAL:,};"
            f" config.json says vocab_size {vocab_size:,}",
            "Use vocabulary and config of the same checkpoint; one that is too small may be cut short.",
        )
    special, hidden = _read_names(names_path, base)
    return Vocabulary(ranks=ranks, special=special, hidden=hidden)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise TextError(
            f"{path} is missing",
            f"A checkpoint's directory needs {RANK_FILE} and {NAMES_FILE} to turn text into tokens.",
        ) from None
    except OSError as error:
        raise TextError(
            f"{path} cannot be read: {error.strerror or error}", "Check its permissions."
        ) from None


def _read_ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(BytesIO(_read(path)), start=1):
        try:
            text, rank = line.rstrip(b"\r\n").split(b" ")
            if not rank.isdigit():
                raise ValueError
            token = a2b_base64(text, strict_mode=True)
            if not token:
                raise ValueError
        except (ValueError, Base64Error):
            shown = line[:60].decode("utf-8", "replace")
            raise TextError(
                f"{path}, line {number}: {shown!r} is not a base64 token and its rank", _fetch_again(path)
            ) from None
        if token in ranks:
            raise TextError(
                f"{path}, line {number}: the token {token!r} has rank {ranks[token]:,} already",
                _fetch_again(path),
            )
        ranks[token] = int(rank)
    _check_ranks(path, ranks)
    return ranks


def _check_ranks(path: Path, ranks: dict[bytes, int]) -> None:
    count = len(ranks)
    seen = bytearray(count)
    for token, rank in ranks.items():
        if rank >= count or seen[rank]:
            problem = "is used twice" if rank < count else f"is not below {count:,}, the number of tokens"
            raise TextError(
                f"{path}: ranks have to be 0 to {count - 1:,}, each once; rank {rank:,} of {token!r}"
                f" {problem}",
                _fetch_again(path),
            )
        seen[rank] = 1
    missing = [byte for byte in range(256) if bytes((byte,)) not in ranks]
    if missing:
        raise TextError(
            f"{path} lacks {len(missing)} of the 256 single bytes, the first is 0x{missing[0]:02x};"
            " text with them could not be encoded",
            _fetch_again(path),
        )


def _read_names(path: Path, base: int) -> tuple[dict[str, int], frozenset[int]]:
    data = _read(path)
    try:
        added = msgspec.json.decode(data, type=_NamesFile).added_tokens_decoder
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TextError(f"{path} is not a tokenizer config: {error}", _fetch_again(path)) from None
    last = base + NUM_SPECIAL - 1
    for token_id, token in added.items():
        if not base <= token_id <= last:
            raise TextError(
                f"{path}: the special token {token.content!r} has id {token_id:,}; with {base:,} tokens in"
                f" {RANK_FILE} special ids are {base:,} to {last:,}",
                f"Use {RANK_FILE} and {NAMES_FILE} of the same checkpoint.",
            )
    special: dict[str, int] = {}
    for token_id in range(base, last + 1):
        name = added[token_id].content if token_id in added else f"<|reserved_token_{token_id}|>"
        if not name or name in special:
            reason = f"is that of id {special[name]:,} already" if name else "is empty"
            raise TextError(
                f"{path}: the spelling {name!r} of special id {token_id:,} {reason}", _fetch_again(path)
            )
        special[name] = token_id
    _check_prefixes(path, special)
    return special, frozenset(token_id for token_id, token in added.items() if token.special)


def _check_prefixes(path: Path, special: dict[str, int]) -> None:
    # Where one spelling begins another, which of them a text holds would depend on the order in which
    # they are tried. Sorted, a spelling is directly followed by one that it begins, if there is any.
    names = sorted(special)
    for shorter, longer in pairwise(names):
        if longer.startswith(shorter):
            raise TextError(
                f"{path}: the special token {shorter!r} (id {special[shorter]:,}) is the beginning of"
                f" {longer!r} (id {special[longer]:,}), so text with the longer one is ambiguous",
                _fetch_again(path),
            )
