"""A weight that is NaN or infinite stops a run by name: its tensor, its place, its file, the command that mends it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from kimistream.checkpoint.names import embedding_name, expert_name, head_name, layer_tensor
from kimistream.checkpoint.table import Checkpoint
from kimistream.engine.model import Model
from kimistream.errors import NumberError

TINY = Path(__file__).parents[1] / "data" / "tiny-k3"
PROMPT = [5, 6, 7]
NAN = b"\xc0\x7f"


def spoil(checkpoint: Checkpoint, name: str, at: int, data: bytes) -> Path:
    """Put bytes into a dense tensor; its file."""
    ref = checkpoint.dense(name)
    path = checkpoint.files[ref.file].path
    with path.open("r+b") as file:
        file.seek(ref.offset + at)
        file.write(data)
    return path


def refused(directory: Path, name: str, path: Path, place: str) -> None:
    with Model.open(directory, memory="2GB", context=16) as model, pytest.raises(NumberError) as caught:
        list(model.generate(PROMPT, max_tokens=1))
    assert f"tensor {name} holds a NaN or an infinity {place}" in caught.value.what
    assert f"(in {path})" in caught.value.what
    assert f"kimistream pull moonshotai/Kimi-K3 {directory} --files {path.name}" in caught.value.remedy


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


def matrices(checkpoint: Checkpoint) -> list[str]:
    config = checkpoint.config
    mla = config.layer_kinds.index("mla")
    return [
        layer_tensor(config, 0, "q_proj"),
        layer_tensor(config, mla, "kv_b_proj"),
        layer_tensor(config, config.moe_layers[0], "router"),
        layer_tensor(config, config.moe_layers[0], "shared_up_proj"),
        head_name(config),
    ]


@pytest.mark.parametrize("which", range(5))
def test_a_matrix_with_a_nan_is_named_with_row_and_column(tiny, which):
    checkpoint = Checkpoint.open(tiny)
    name = matrices(checkpoint)[which]
    cols = checkpoint.dense(name).shape[1]
    path = spoil(checkpoint, name, 2 * (3 * cols + 2), NAN)
    refused(tiny, name, path, "at row 3, column 2")


def test_a_row_of_the_embedding_with_a_nan_is_named(tiny):
    checkpoint = Checkpoint.open(tiny)
    name = embedding_name(checkpoint.config)
    row = checkpoint.dense(name).nbytes // checkpoint.dense(name).shape[0]
    path = spoil(checkpoint, name, 6 * row + 4, NAN)
    refused(tiny, name, path, "in row 6")


def test_an_experts_scale_of_255_is_named_with_the_file_of_that_expert(tiny):
    checkpoint = Checkpoint.open(tiny)
    layer = checkpoint.config.moe_layers[-1]
    table = checkpoint.experts(layer)
    for expert in range(len(table.offsets)):  # which one is chosen is the router's
        path = checkpoint.files[int(table.files[expert, 3])].path
        with path.open("r+b") as file:
            file.seek(int(table.offsets[expert, 3]))
            file.write(b"\xff")
    with Model.open(tiny, memory="2GB", context=16) as model, pytest.raises(NumberError) as caught:
        list(model.generate(PROMPT, max_tokens=1))
    names = [
        expert_name(checkpoint.config, layer, e, "w2", "weight_scale") for e in range(len(table.offsets))
    ]
    (name,) = [name for name in names if f"tensor {name} " in caught.value.what]
    path = checkpoint.shard_of(name)
    assert "at row 0, column 0" in caught.value.what
    assert f"(in {path})" in caught.value.what
    assert f"--files {path.name}" in caught.value.remedy


def test_the_file_of_every_tensor_is_known(tiny):
    checkpoint = Checkpoint.open(tiny)
    config = checkpoint.config
    for name in checkpoint.names():
        assert checkpoint.shard_of(name) == checkpoint.files[checkpoint.dense(name).file].path
    for layer in config.moe_layers:
        table = checkpoint.experts(layer)
        for column, (part, suffix) in enumerate(
            (part, suffix) for part in ("w1", "w2", "w3") for suffix in ("weight_packed", "weight_scale")
        ):
            for expert in (0, config.moe.num_experts - 1):
                file = int(np.asarray(table.files)[expert, column])
                name = expert_name(config, layer, expert, part, suffix)
                assert checkpoint.shard_of(name) == checkpoint.files[file].path
    for name in (
        "",
        "x",
        expert_name(config, layer, config.moe.num_experts, "w1", "weight"),
        "a.experts.b.c.d",
    ):
        assert checkpoint.shard_of(name) is None
