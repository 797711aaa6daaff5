"""The checkpoint with random weights that tests use: what its script makes, every mechanism of K3 in it."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from kimistream.checkpoint.formats import WeightFormat
from kimistream.checkpoint.table import Checkpoint

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_random_checkpoint.py"


MADE = "3ab5269964f3c77a6f90c10f50aded8dd9009d36cb3870adb8a93793ce3f4602"
"""sha256 over the names and bytes of all files in order: the same on every machine."""


def sha256(directory: Path) -> str:
    return hashlib.sha256(
        b"".join(p.name.encode() + p.read_bytes() for p in sorted(directory.iterdir()))
    ).hexdigest()


def make(directory: Path) -> Path:
    spec = importlib.util.spec_from_file_location("make_random_checkpoint", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.make(directory)
    return directory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("random"))


def test_the_script_makes_the_same_bytes_on_every_machine(made):
    assert sha256(made) == MADE


def test_it_is_small(made):
    assert sum(path.stat().st_size for path in made.iterdir()) <= 5_000_000


def test_it_has_every_mechanism(made):
    checkpoint = Checkpoint.open(made)
    config = checkpoint.config
    assert config.nested
    assert config.num_layers >= 12
    assert config.attn_res_block_size == 4
    assert set(config.layer_kinds) == {"kda", "mla"}
    assert config.layer_kinds[-2:] == ("mla", "mla")
    assert config.ffn_kinds[0] == "dense"
    assert set(config.ffn_kinds[1:]) == {"moe"}
    assert config.moe.num_experts >= 16
    assert config.moe.top_k == 4
    assert config.moe.latent_size is not None
    assert config.moe.latent_norm
    assert config.moe.num_shared_experts == 2
    assert config.mla.q_lora_rank is not None
    assert config.mla.output_gate
    assert config.kda.full_rank_gate
    assert config.kda.gate_lower_bound == -5.0
    assert checkpoint.experts(1).format is WeightFormat.MXFP4
    assert all(checkpoint.experts(layer).contiguous.all() for layer in config.moe_layers)
    assert len(checkpoint.files) == 14


def test_a_log_is_padded_with_zeros(made):
    checkpoint = Checkpoint.open(made)
    heads = checkpoint.config.kda.num_heads
    values = checkpoint.read_vector(checkpoint.layer(0)["A_log"].name)
    assert len(values) > heads
    assert (values[:heads] != 0).all()
    assert (values[heads:] == 0).all()


def test_all_its_numbers_are_finite_and_no_scale_is_nan(made):
    checkpoint = Checkpoint.open(made)
    for name in checkpoint.names():
        checkpoint.read_vector(name)
    table = checkpoint.experts(1)
    with open(checkpoint.files[table.file[0]].path, "rb") as raw:
        for expert in range(16):
            for column in (1, 3, 5):
                raw.seek(table.offsets[expert, column])
                scales = np.frombuffer(raw.read(table.sizes[column]), np.uint8)
                assert 100 < scales.min() <= scales.max() < 135


def test_the_vocabulary_is_the_bytes_and_the_released_specials(made):
    directory = made
    lines = (directory / "tiktoken.model").read_bytes().splitlines()
    assert [base64.b64decode(line.split()[0]) for line in lines] == [bytes([b]) for b in range(256)]
    assert [int(line.split()[1]) for line in lines] == list(range(256))
    added = json.loads((directory / "tokenizer_config.json").read_bytes())["added_tokens_decoder"]
    assert len(added) == 16
    assert {key: added[key]["content"] for key in ("256", "258", "259", "277", "321", "511")} == {
        "256": "[BOS]",
        "258": "<|end_of_msg|>",
        "259": "<|open|>",
        "277": "<|media_pad|>",
        "321": "<osagent_mode>",
        "511": "[PAD]",
    }
    assert not added["259"]["special"]
    config = Checkpoint.open(directory).config
    assert (config.vocab_size, config.bos_id, config.eos_ids, config.pad_id) == (512, 256, (258,), 511)
