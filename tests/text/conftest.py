"""Vocabularies for the tests of text: the released one, rebuilt, and a small one of single bytes."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kimistream.text.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data"

RANK_FILE_SHA256 = "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103"
RELEASED_BASE = 163_584

# Offset in the special block, spelling, "special" flag: the names that Kimi K3 gives.
K3_NAMES = (
    (0, "[BOS]", True),
    (1, "[EOS]", True),
    (2, "<|end_of_msg|>", True),
    (3, "<|open|>", False),
    (4, "<|close|>", False),
    (5, "<|sep|>", False),
    (6, "[start_header_id]", True),
    (7, "[end_header_id]", True),
    (9, "[EOT]", True),
    (18, "<|media_begin|>", True),
    (19, "<|media_content|>", True),
    (20, "<|media_end|>", True),
    (21, "<|media_pad|>", True),
    (65, "<osagent_mode>", True),
    (254, "[UNK]", True),
    (255, "[PAD]", True),
)


def names_file(base: int) -> dict[str, Any]:
    """A `tokenizer_config.json` with Kimi K3's names, for `base` ordinary tokens."""
    return {
        "added_tokens_decoder": {
            str(base + offset): {"content": name, "special": flag, "lstrip": False}
            for offset, name, flag in K3_NAMES
        },
        "bos_token": "[BOS]",
        "tokenizer_class": "TikTokenTokenizer",
    }


def write_vocabulary(directory: Path, tokens: list[bytes]) -> Path:
    """Write both vocabulary files for `tokens` in rank order."""
    lines = (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    (directory / "tiktoken.model").write_bytes(b"".join(lines))
    (directory / "tokenizer_config.json").write_text(json.dumps(names_file(len(tokens))))
    return directory


@pytest.fixture(scope="session")
def released_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The released vocabulary; its ranks come out of the package `splintr-rs`."""
    import splintr

    source = splintr.Tokenizer.from_pretrained("kimi_k3")
    directory = tmp_path_factory.mktemp("released")
    write_vocabulary(directory, [source.decode_bytes([rank]) for rank in range(RELEASED_BASE)])
    found = hashlib.sha256((directory / "tiktoken.model").read_bytes()).hexdigest()
    if found != RANK_FILE_SHA256:
        pytest.fail(f"splintr-rs {splintr.__version__} does not carry the released ranks: sha256 {found}")
    return directory


@pytest.fixture(scope="session")
def released(released_directory: Path) -> Tokenizer:
    return Tokenizer.from_directory(released_directory, RELEASED_BASE + 256)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """256 single bytes, not in byte order, and the special block behind them."""
    directory = tmp_path_factory.mktemp("small")
    write_vocabulary(directory, [bytes((byte ^ 0x5A,)) for byte in range(256)])
    return Tokenizer.from_directory(directory, 512)


@pytest.fixture
def small_files(tmp_path: Path) -> Path:
    """A directory with a valid small vocabulary (vocab_size 512) for a test to damage."""
    return write_vocabulary(tmp_path, [bytes((byte,)) for byte in range(256)])


@pytest.fixture(scope="session")
def vectors() -> Callable[[str], Any]:
    """Read one of the vector files: `vectors("chat_vectors")`."""
    return lambda name: json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
