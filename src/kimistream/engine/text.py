"""The checkpoint's tokenizer, where it has one.

Knows: that a checkpoint without tokenizer files can still be run on ids.
Does not know: how text becomes ids (text).
"""

from __future__ import annotations

from pathlib import Path

from kimistream.checkpoint.config import ModelConfig
from kimistream.errors import TextError
from kimistream.text.tokenizer import Tokenizer


def try_tokenizer(directory: Path, config: ModelConfig) -> tuple[Tokenizer | None, str]:
    """The tokenizer, or None and why there is none. Files that are there but wrong raise TextError."""
    missing = [n for n in ("tiktoken.model", "tokenizer_config.json") if not (directory / n).exists()]
    if missing:
        return None, f"{directory} has no {' and no '.join(missing)}"
    return Tokenizer.from_directory(directory, config.vocab_size), ""


def stop_ids(config: ModelConfig, tokenizer: Tokenizer | None) -> frozenset[int]:
    """The tokens that end an answer: the config's and the tokenizer's."""
    known = tokenizer.stop_ids if tokenizer is not None else frozenset()
    return frozenset(config.eos_ids) | known


__all__ = ["TextError", "stop_ids", "try_tokenizer"]
