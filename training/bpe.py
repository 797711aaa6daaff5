"""A small byte-level vocabulary in the released form: `tiktoken.model` and `tokenizer_config.json`.

Knows: pair merging inside the released split pattern, the place of the special ids.
Does not know: what the texts are about.

Half of the tokens are merges learned in order of frequency, the rest the most frequent words whole (a word
that is a token is taken whole, whatever its merges). Digits are never merged: numbers are written digit
by digit, which is what makes small sums learnable.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import regex

from kimistream.text.tokenizer import SPLIT_PATTERN

SPECIAL_OFFSETS = {
    0: ("[BOS]", True),
    1: ("[EOS]", True),
    2: ("<|end_of_msg|>", True),
    3: ("<|open|>", False),
    4: ("<|close|>", False),
    5: ("<|sep|>", False),
    6: ("[start_header_id]", True),
    7: ("[end_header_id]", True),
    9: ("[EOT]", True),
    18: ("<|media_begin|>", True),
    19: ("<|media_content|>", True),
    20: ("<|media_end|>", True),
    21: ("<|media_pad|>", True),
    65: ("<osagent_mode>", True),
    254: ("[UNK]", True),
    255: ("[PAD]", True),
}
"""Offset in the block of 256 special ids -> spelling and flag, as in the released vocabulary."""

_SPLIT = regex.compile(SPLIT_PATTERN, regex.V1)


def count_words(texts: list[str]) -> Counter[bytes]:
    """How often each piece of the split pattern occurs."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(match.group() for match in _SPLIT.finditer(text))
    return Counter({word.encode(): count for word, count in words.items()})


def learn(words: Counter[bytes], size: int, merges: int) -> list[bytes]:
    """`size` tokens in rank order: the bytes, `merges` merged pairs, then whole words by frequency.

    Ties go to the pair or word that sorts first, so the result depends on the counts alone.
    """
    tokens = [bytes((byte,)) for byte in range(256)]
    known = set(tokens)
    split = {word: [bytes((byte,)) for byte in word] for word in words if not word.isdigit()}
    for _ in range(merges):
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, parts in split.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merged = best[0] + best[1]
        if merged not in known:
            tokens.append(merged)
            known.add(merged)
        for word, parts in split.items():
            if len(parts) > 1:
                split[word] = _merge(parts, best)
    whole = sorted((word for word in split if word not in known), key=lambda word: (-words[word], word))
    tokens += whole[: size - len(tokens)]
    spare = 0
    while len(tokens) < size:  # a corpus with fewer words than tokens: pairs of bytes that never occur
        token = bytes((0, spare))
        tokens.append(token)
        spare += 1
    return tokens


def _merge(parts: list[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    out: list[bytes] = []
    at = 0
    while at < len(parts):
        if at + 1 < len(parts) and (parts[at], parts[at + 1]) == pair:
            out.append(parts[at] + parts[at + 1])
            at += 2
        else:
            out.append(parts[at])
            at += 1
    return out


def write_vocabulary(directory: Path, tokens: list[bytes]) -> None:
    """Both files into `directory`."""
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    (directory / "tiktoken.model").write_text("".join(lines))
    base = len(tokens)
    added = {
        str(base + offset): {
            "content": name,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": special,
        }
        for offset, (name, special) in SPECIAL_OFFSETS.items()
    }
    names = {
        "added_tokens_decoder": added,
        "additional_special_tokens": [
            name
            for name, special in SPECIAL_OFFSETS.values()
            if special and name not in ("[BOS]", "[EOS]", "[UNK]", "[PAD]")
        ],
        "bos_token": "[BOS]",
        "clean_up_tokenization_spaces": False,
        "eos_token": "[EOS]",
        "model_max_length": 1000000000000000019884624838656,
        "pad_token": "[PAD]",
        "tokenizer_class": "TikTokenTokenizer",
        "unk_token": "[UNK]",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(names, indent=2) + "\n")
