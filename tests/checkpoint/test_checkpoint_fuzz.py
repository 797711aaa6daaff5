"""Damaged headers, indexes and configs: a checkpoint opens, or one KimistreamError says why not."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from broken_checkpoints import INDEX, join, repack, split
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kimistream.checkpoint.released import Sizes
from kimistream.checkpoint.synth import synth
from kimistream.checkpoint.table import Checkpoint
from kimistream.errors import KimistreamError

SIZES = Sizes(
    layers=2,
    experts=2,
    vocab=512,
    hidden=32,
    kda_heads=1,
    kda_head_dim=16,
    a_log_entries=2,
    mla_heads=1,
    q_lora_rank=16,
    kv_lora_rank=16,
    nope_head_dim=8,
    rope_head_dim=4,
    v_head_dim=8,
    dense_intermediate=32,
    top_k=1,
    shared_experts=1,
    expert_intermediate=32,
    latent=32,
    block_size=2,
)
SHARD = "model-00002-of-000003.safetensors"
MANY = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from([1 << 31, 1 << 63, 1 << 64, -(1 << 63), 10**40]),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["BF16", "F32", "U8", "F64", "kda", "silu", "softmax"]),
    st.lists(st.integers(-1, 70), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@pytest.fixture(scope="module")
def whole() -> Any:
    with tempfile.TemporaryDirectory() as directory:
        synth(Path(directory) / "whole", SIZES)
        yield Path(directory) / "whole"


def outcome(whole: Path, name: str, data: bytes) -> str:
    """Open a copy in which one file is replaced; anything but a KimistreamError is a failure."""
    with tempfile.TemporaryDirectory() as directory:
        for path in whole.iterdir():
            if path.name == name:
                (Path(directory) / name).write_bytes(data)
            else:
                (Path(directory) / path.name).symlink_to(path)
        try:
            Checkpoint.open(directory)
        except KimistreamError as error:
            return error.what or "a refusal without a word"
        return ""


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON tree."""
    found: list[tuple[Any, Any]] = []
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        found.append((tree, key))
        if isinstance(value, dict | list):
            found += places(value)
    return found


def damage(data: st.DataObject, tree: Any) -> Any:
    """A copy of the tree with one to three values replaced, removed, or doubled under another key."""
    tree = copy.deepcopy(tree)
    for _ in range(data.draw(st.integers(1, 3))):
        spots = places(tree)
        if not spots:
            return tree
        container, key = spots[data.draw(st.integers(0, len(spots) - 1))]
        action = data.draw(st.sampled_from(["replace", "remove", "nudge", "double"]))
        if action == "replace":
            container[key] = data.draw(ODD)
        elif action == "remove":
            del container[key]
        elif action == "nudge" and isinstance(container[key], int) and not isinstance(container[key], bool):
            container[key] += data.draw(st.sampled_from([-32, -1, 1, 2, 32]))
        elif isinstance(container, dict):
            container[data.draw(st.text(max_size=5))] = copy.deepcopy(container[key])
        else:
            container.append(copy.deepcopy(container[key]))
    return tree


def spoil(data: st.DataObject, raw: bytes) -> bytes:
    """The bytes with a cut, a run of other bytes, or an insertion."""
    at = data.draw(st.integers(0, len(raw)))
    kind = data.draw(st.sampled_from(["cut", "flip", "insert"]))
    some = data.draw(st.binary(min_size=1, max_size=4))
    if kind == "cut":
        return raw[:at]
    return raw[:at] + some + raw[at + (len(some) if kind == "flip" else 0) :]


@given(st.data())
@MANY
def test_a_damaged_config_opens_or_is_refused(whole, data):
    tree = json.loads((whole / "config.json").read_bytes())
    outcome(whole, "config.json", json.dumps(damage(data, tree)).encode())


@given(st.data())
@MANY
def test_a_damaged_index_opens_or_is_refused(whole, data):
    tree = json.loads((whole / INDEX).read_bytes())
    outcome(whole, INDEX, json.dumps(damage(data, tree)).encode())


@given(st.data())
@MANY
def test_a_damaged_header_opens_or_is_refused(whole, data):
    header, rest = split(whole / SHARD)
    outcome(whole, SHARD, join(damage(data, header), rest))


@given(st.data())
@MANY
def test_a_header_whose_shapes_are_changed_together_with_the_data_opens_or_is_refused(whole, data):
    """The header stays valid, so that what is reached is the comparison with the config."""
    header, rest = split(whole / SHARD)
    tensors = {}
    victim = data.draw(st.sampled_from(sorted(header)))
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], rest[begin:end])
    shape = data.draw(st.lists(st.integers(0, 40), max_size=4))
    dtype = data.draw(st.sampled_from(["F32", "BF16", "F16", "U8", "F64"]))
    count = 1
    for side in shape:
        count *= side
    if count > 100_000:
        return
    width = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1, "F64": 8}[dtype]
    same = (dtype, shape) == tensors[victim][:2]
    tensors[victim] = (dtype, shape, bytes(width * count))
    with tempfile.TemporaryDirectory() as directory:
        repack(Path(directory) / SHARD, tensors)
        raw = (Path(directory) / SHARD).read_bytes()
    said = outcome(whole, SHARD, raw)
    float_of_same_shape = shape == header[victim]["shape"] and dtype in ("F32", "BF16", "F16")
    if not same and not float_of_same_shape and "A_log" not in victim:
        assert victim in said


@given(st.data(), st.sampled_from(["config.json", INDEX, SHARD]))
@MANY
def test_damaged_bytes_open_or_are_refused(whole, data, name):
    raw = (whole / name).read_bytes()
    if name == SHARD:
        raw = raw[: data.draw(st.integers(8, 3000))] if data.draw(st.booleans()) else raw
    outcome(whole, name, spoil(data, raw))


def test_the_whole_one_opens(whole):
    assert outcome(whole, SHARD, (whole / SHARD).read_bytes()) == ""
