"""A checkpoint that is small enough to talk in any test: three layers, random numbers, bytes for tokens."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from kimistream.checkpoint.released import Sizes
from kimistream.checkpoint.synth import synth

# Started in the background, a suite inherits an ignored SIGINT, and with it every command that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

TALKING = Sizes(
    layers=3,
    experts=4,
    vocab=512,
    hidden=64,
    kda_heads=2,
    kda_head_dim=16,
    a_log_entries=4,
    mla_heads=2,
    q_lora_rank=32,
    kv_lora_rank=32,
    nope_head_dim=16,
    rope_head_dim=16,
    v_head_dim=16,
    dense_intermediate=64,
    top_k=2,
    shared_experts=1,
    expert_intermediate=32,
    latent=32,
    block_size=2,
    context=4096,
)
NAMES = ("[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>")


def make_checkpoint(directory: Path) -> Path:
    """A checkpoint of random numbers, of three layers, with a vocabulary of the 256 bytes."""
    synth(directory, TALKING, seed=5)
    lines = (base64.b64encode(bytes((b,))) + b" %d\n" % b for b in range(256))
    (directory / "tiktoken.model").write_bytes(b"".join(lines))
    named = {str(256 + i): {"content": name, "special": i < 3} for i, name in enumerate(NAMES)}
    (directory / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": named}))
    return directory


@pytest.fixture(scope="session")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the talking checkpoint; not to be changed."""
    return make_checkpoint(tmp_path_factory.mktemp("talking") / "checkpoint")


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """packed(directory, group=100_000) -> its pack, made once, in groups of so many bytes; not to be changed."""
    from kimistream.checkpoint.table import Checkpoint
    from kimistream.engine import pack_cut
    from kimistream.engine.packing import Packing

    folder = tmp_path_factory.mktemp("packs")
    made: dict[tuple[Path, int], Path] = {}

    def make(directory: Path, group: int = 100_000) -> Path:
        out = folder / f"{len(made)}.pack"
        if (directory, group) not in made:
            with mock.patch.object(pack_cut, "GROUP_BYTES", group):
                Packing(Checkpoint.open(directory), out).run()
            made[directory, group] = out
        return made[directory, group]

    return make
