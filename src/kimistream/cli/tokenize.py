"""`kimistream tokenize`: text to token ids, for looking at them.

Knows: how ids are shown.
Does not know: how they are made (text.tokenizer).
"""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kimistream.cli.options import checkpoint_path, exactly_one, prompt_ids, read_prompt_file

if TYPE_CHECKING:
    from kimistream.text.tokenizer import Tokenizer


def tokenize(
    checkpoint: str,
    /,
    *,
    text: str | None = None,
    file: str | None = None,
    decode: str | None = None,
    special: Annotated[bool, Parameter(negative=())] = False,
    ids: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Show the tokens of a text, one a line: place, id, and the bytes it stands for.

    Parameters
    ----------
    checkpoint
        A directory with `config.json` and the tokenizer's files, or `demo`.
    text
        The text.
    file
        A UTF-8 file with the text; `-` reads standard input.
    decode
        Token ids instead of a text, as 1008,10484,318.
    special
        Spellings of special tokens become these tokens, as in `run --prompt`.
    ids
        Only the ids, in one line, as `run --ids` takes them.
    """
    source = exactly_one({"--text": text, "--file": file, "--decode": decode})
    tokenizer = open_tokenizer(checkpoint)
    if decode is not None:
        tokens = prompt_ids(decode, source)
    else:
        given = read_prompt_file(file, source) if file is not None else text or ""
        tokens = tokenizer.encode(given, special=special)
    if ids:
        print(",".join(map(str, tokens)))
        return
    spellings = [tokenizer.token_bytes(token) for token in tokens]
    for place, (token, raw) in enumerate(zip(tokens, spellings, strict=True)):
        print(f"{place:6} {token:7}  {shown(raw)}{'  special' if tokenizer.is_special(token) else ''}")
    print(f"{len(tokens)} tokens, {sum(map(len, spellings))} bytes")


def open_tokenizer(checkpoint: str) -> Tokenizer:
    """The tokenizer of a checkpoint directory; its shards need not be there. Raises TextError."""
    from kimistream.checkpoint.config import load_config
    from kimistream.text.tokenizer import Tokenizer

    path = checkpoint_path(checkpoint)
    return Tokenizer.from_directory(path, load_config(path).vocab_size)


def shown(raw: bytes) -> str:
    """A token's bytes as a JSON string; those that are not whole characters as hexadecimal numbers."""
    try:
        return jsonlib.dumps(raw.decode("utf-8"), ensure_ascii=False)
    except UnicodeDecodeError:
        return f"bytes {raw.hex(' ')}"
