"""Synthetic checkpoints: the released layout to the byte, random contents, nothing half-written."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from kimistream.checkpoint import synth as synth_module
from kimistream.checkpoint.config import parse_config
from kimistream.checkpoint.header import read_header
from kimistream.checkpoint.index import INDEX_NAME
from kimistream.checkpoint.released import Sizes, Vision, config_tree, place, shard, shard_count, shard_kind
from kimistream.checkpoint.sparse import real_rows
from kimistream.checkpoint.synth import MARKER, synth, synth_sizes
from kimistream.checkpoint.table import Checkpoint
from kimistream.errors import Interrupted, KimistreamError, OutputError, UsageError

RELEASED = {  # shard number: published size in bytes
    1: 2_341_216_112,  # layer 0, dense
    2: 16_990_911_504,  # KDA, layer number of one digit
    4: 16_567_501_776,  # MLA, one digit
    11: 16_990_916_912,  # KDA, two digits
    12: 16_567_507_176,  # MLA, two digits
    93: 16_567_507_176,  # the last layer, MLA like the one before it
    94: 4_697_664_072,  # embedding, head, final norms
    95: 92_289_328,  # the image tower's projector
    96: 802_448_352,  # the image tower
}
RELEASED_TOTAL = 1_560_936_091_448
SMALL = Sizes(
    layers=3,
    experts=4,
    vocab=1536,
    hidden=256,
    kda_heads=2,
    mla_heads=2,
    q_lora_rank=80,
    kv_lora_rank=80,
    dense_intermediate=256,
    top_k=2,
    expert_intermediate=96,
    latent=96,
    block_size=2,
    vision=Vision(blocks=1, hidden=32, qkv=48, intermediate=64, positions=4),
)


def sha256s(directory):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def test_the_full_shape_has_the_published_size_of_every_file():
    sizes = Sizes(vision=Vision())
    config = parse_config(msgspec.json.encode(config_tree(sizes)))
    assert shard_count(config, sizes) == 96
    of_kind: dict[object, int] = {}
    total = 0
    for number in range(1, 97):
        kind = shard_kind(config, number)
        if kind not in of_kind or number in RELEASED:
            placed = place(shard(config, sizes, number))[1]
            size = placed[-1].offset + placed[-1].tensor.nbytes
            assert of_kind.setdefault(kind, size) == size
            assert RELEASED.get(number, size) == size
        total += of_kind[kind]
    assert total == RELEASED_TOTAL


def test_the_full_shape_has_497220_tensors():
    sizes = Sizes(vision=Vision())
    config = parse_config(msgspec.json.encode(config_tree(sizes)))
    counts: dict[object, int] = {}
    total = 0
    for number in range(1, 97):
        kind = shard_kind(config, number)
        if kind not in counts:
            counts[kind] = len(shard(config, sizes, number))
        total += counts[kind]
    assert total == 497_220


def test_what_it_writes_opens_and_every_expert_is_one_run(tmp_path):
    written = synth(tmp_path / "made", SMALL, seed=5)
    checkpoint = Checkpoint.open(tmp_path / "made")
    assert written.shards == len(checkpoint.files) == 6
    assert written.nbytes == sum(path.stat().st_size for path in (tmp_path / "made").iterdir())
    assert checkpoint.config.layer_kinds == ("kda", "kda", "mla")
    for layer in checkpoint.config.moe_layers:
        assert checkpoint.experts(layer).contiguous.all()
    assert not (tmp_path / "made" / MARKER).exists()


def test_the_bytes_depend_on_the_seed_alone(tmp_path):
    big = replace(SMALL, dense_intermediate=2048)  # large enough for the shared buffers
    synth(tmp_path / "one", big, seed=1, threads=1)
    synth(tmp_path / "two", big, seed=1, threads=3)
    synth(tmp_path / "other", big, seed=2)
    one, other = sha256s(tmp_path / "one"), sha256s(tmp_path / "other")
    assert one == sha256s(tmp_path / "two")
    same = {name for name in one if one[name] == other[name]}
    assert same == {"config.json", INDEX_NAME}


def test_the_numbers_have_a_sane_scale_and_no_two_rows_are_equal(tmp_path):
    synth(tmp_path / "made", replace(SMALL, dense_intermediate=8192, hidden=512), seed=1)
    checkpoint = Checkpoint.open(tmp_path / "made")
    for role, ref in checkpoint.layer(0).items():
        values = checkpoint.read_vector(ref.name)
        if len(ref.shape) == 2 and ref.shape[0] > 1:
            gain = values.std() * np.sqrt(ref.shape[1])
            assert 0.6 < gain < 2.0, role
            assert len(np.unique(values, axis=0)) == len(values)
    gate = checkpoint.layer(0)["gate_proj"]
    assert gate.nbytes > 2 * 2_097_143  # longer than the buffer it is cut from


def test_the_sparse_form_is_real_where_it_must_be(tmp_path):
    synth(tmp_path / "made", replace(SMALL, dense_intermediate=4096), seed=5, sparse=True)
    checkpoint = Checkpoint.open(tmp_path / "made")
    config = checkpoint.config
    vector = checkpoint.read_vector(checkpoint.layer(1)["o_norm"].name)
    assert (vector != 0).all()
    embedding = checkpoint.read_vector(checkpoint.final()["embed_tokens"].name)
    real = real_rows(SMALL.vocab)
    assert (np.abs(embedding[real]).sum(axis=1) > 0).all()
    head = checkpoint.read_vector(checkpoint.final()["lm_head"].name)
    assert (np.abs(head[real[:-256]]).sum(axis=1) > 0).all()
    for layer in range(config.num_layers):
        for role, ref in checkpoint.layer(layer).items():
            if len(ref.shape) == 2 and ref.shape[0] > 65 and role != "router":
                assert (checkpoint.read_vector(ref.name)[64:66, 64:66] != 0).all(), role
    gate = checkpoint.read_vector(checkpoint.layer(0)["gate_proj"].name)
    assert (gate != 0).mean() < 0.01
    values = checkpoint.read_vector(checkpoint.layer(2)["kv_b_proj"].name)
    assert (values[128 + 64 : 128 + 66, : config.mla.kv_lora_rank].any(axis=1)).all()
    table = checkpoint.experts(1)
    with open(checkpoint.files[table.file[0]].path, "rb") as raw:
        for column in (1, 3, 5):
            raw.seek(table.offsets[0, column])
            assert any(raw.read(table.sizes[column]))


def test_the_sparse_form_takes_little_disk_and_every_expert_has_a_router_row(tmp_path):
    # K3's real width, so that rows are longer than blocks, as in the full shape
    sizes = synth_sizes(layers=2, experts=32, vocab=2048)
    written = synth(tmp_path / "made", sizes, seed=1, sparse=True)
    assert written.nbytes > 3_000_000_000
    assert written.disk_bytes < 60_000_000
    checkpoint = Checkpoint.open(tmp_path / "made")
    router = checkpoint.read_vector(checkpoint.layer(1)["router"].name)
    columns = (router != 0).sum(axis=1)
    assert columns.min() >= 500
    assert (columns < 7168 / 2).all()
    x = np.random.default_rng(1).standard_normal((50, 7168)).astype(np.float32)
    logits = x @ router.T
    assert 0.8 < logits.std() < 2.5
    chosen = np.argsort(-logits, axis=1)[:, :4]
    assert len(np.unique(chosen)) > 24


def test_sizes_that_do_not_fit_are_refused_by_option():
    for arguments, option in [
        ({"layers": 0}, "--layers 0"),
        ({"experts": -1}, "--experts -1"),
        ({"experts": 10**6}, "--experts 1000000"),
        ({"vocab": 100}, "--vocab 100"),
        ({"hidden": 8}, "--hidden 8"),
        ({"layers": 5, "mla": [6]}, "--mla 6"),
        ({"layers": 5, "mla": [0, 4]}, "--mla 0,4"),
        ({"layers": 5, "mla": [4, 4]}, "--mla 4,4"),
    ]:
        with pytest.raises(UsageError) as caught:
            synth_sizes(**arguments)
        assert option in caught.value.what
        assert caught.value.remedy


def test_the_mla_layers_are_every_fourth_and_the_last_or_those_given():
    assert synth_sizes().mla() == [*range(4, 93, 4), 93]
    assert synth_sizes(layers=6).mla() == [4, 6]
    assert synth_sizes(layers=1).mla() == [1]
    assert synth_sizes(layers=5, mla=[5, 4]).mla() == [4, 5]
    assert synth_sizes(experts=8).top_k == 8


def test_a_disk_without_room_is_refused_with_both_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(synth_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=12_345))
    with pytest.raises(OutputError) as caught:
        synth(tmp_path / "made", SMALL)
    assert "the disk has 12,345 free" in caught.value.what
    needed = int(caught.value.what.split(" needs ")[1].split(" bytes")[0].replace(",", ""))
    assert needed > 2_000_000
    assert not (tmp_path / "made").exists()


def test_a_directory_in_use_is_left_alone(tmp_path):
    (tmp_path / "model-00001-of-000006.safetensors").write_bytes(b"mine")
    with pytest.raises(OutputError, match="is not empty"):
        synth(tmp_path, SMALL)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]
    with pytest.raises(OutputError, match="is not a directory"):
        synth(tmp_path / "model-00001-of-000006.safetensors", SMALL)


def test_what_a_killed_run_left_is_not_a_checkpoint_and_may_be_written_over(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    monkeypatch.setattr(synth_module._Job, "finish", die)
    monkeypatch.setattr(synth_module._Job, "remove", lambda _: None)  # a killed process removes nothing
    with pytest.raises(Killed):
        synth(tmp_path / "made", SMALL)
    monkeypatch.undo()
    left = {path.name for path in (tmp_path / "made").iterdir()}
    assert MARKER in left
    assert "model-00001-of-000006.safetensors" in left
    with pytest.raises(KimistreamError):
        Checkpoint.open(tmp_path / "made")
    synth(tmp_path / "made", SMALL)
    Checkpoint.open(tmp_path / "made")


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    real, calls = os.pwrite, []

    def full(handle, data, offset):
        calls.append(offset)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        return real(handle, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OutputError, match="No space left on device"):
        synth(tmp_path / "made", SMALL)
    assert not (tmp_path / "made").exists()


def test_an_interruption_leaves_nothing_behind(tmp_path):
    def stop(done, total):
        raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        synth(tmp_path / "made", SMALL, progress=stop)
    assert not (tmp_path / "made").exists()


def test_short_writes_and_refused_direct_writes_give_the_same_bytes(tmp_path, monkeypatch):
    synth(tmp_path / "plain", SMALL)
    real = os.pwrite
    refused = threading.Event()

    def awkward(handle, data, offset):
        if not refused.is_set():
            refused.set()
            raise OSError(22, "Invalid argument")
        return real(handle, data[: max(1, len(data) // 3)] if len(data) > 4096 else data, offset)

    monkeypatch.setattr(os, "pwrite", awkward)
    synth(tmp_path / "awkward", SMALL, threads=1)
    assert sha256s(tmp_path / "plain") == sha256s(tmp_path / "awkward")


def test_progress_rises_to_the_total(tmp_path):
    seen = []
    synth(tmp_path / "made", SMALL, progress=lambda done, total: seen.append((done, total)))
    done = [d for d, _ in seen]
    assert done == sorted(done)
    assert {total for _, total in seen} == {seen[-1][0]}
    shards = sum(p.stat().st_size for p in (tmp_path / "made").glob("*.safetensors"))
    assert seen[-1] == (shards, shards)


def test_the_files_are_what_the_safetensors_library_reads(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    synth(tmp_path / "made", SMALL)
    index = json.loads((tmp_path / "made" / INDEX_NAME).read_bytes())
    names = []
    for path in sorted((tmp_path / "made").glob("*.safetensors")):
        with safetensors.safe_open(path, "numpy") as theirs:
            assert set(theirs.keys()) == set(read_header(path).names)
            names += theirs.keys()
    assert sorted(names) == sorted(index["weight_map"])
