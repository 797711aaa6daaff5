"""What a checkpoint must hold to be opened, and where its tensors are found."""

from __future__ import annotations

import json
import shutil
import tracemalloc

import numpy as np
import pytest
from broken_checkpoints import (
    INDEX,
    LINEAR,
    SECOND,
    TINY,
    copy,
    edit_json,
    repack,
    rewrite,
    split,
    unpack,
)

from kimistream.checkpoint.formats import WeightFormat
from kimistream.checkpoint.released import Sizes
from kimistream.checkpoint.synth import synth
from kimistream.checkpoint.table import Checkpoint
from kimistream.errors import CheckpointError, ConfigError, NumberError, ShardError, TensorError

LAYER4 = "language_model.model.layers.4."
ROUTER = f"{LAYER4}block_sparse_moe.gate.weight"
EXPERT = f"{LAYER4}block_sparse_moe.experts.17.w2.weight_"


@pytest.fixture
def tiny(tmp_path):
    return copy(TINY, tmp_path / "tiny")


def change(directory, name, make):
    """Replace one tensor of the second shard: make(dtype, shape, bytes) -> the same three, or None."""
    tensors = unpack(directory / SECOND)
    made = make(*tensors.pop(name))
    if made is not None:
        tensors[name] = made
    repack(directory / SECOND, tensors)


def test_every_tensor_lies_where_the_table_says():
    safetensors = pytest.importorskip("safetensors")
    checkpoint = Checkpoint.open(TINY)
    for ref in (*checkpoint.layer(4).values(), *checkpoint.layer(3).values(), *checkpoint.final().values()):
        path = checkpoint.files[ref.file].path
        with safetensors.safe_open(path, "numpy") as theirs, open(path, "rb") as raw:
            raw.seek(ref.offset)
            stored = raw.read(ref.nbytes)
            assert tuple(theirs.get_slice(ref.name).get_shape()) == ref.shape
        header, data = split(path)
        begin, end = header[ref.name]["data_offsets"]
        assert stored == data[begin:end]


def test_every_expert_lies_where_the_table_says():
    checkpoint = Checkpoint.open(TINY)
    table = checkpoint.experts(4)
    assert table.format is WeightFormat.MXFP4
    assert table.offsets.shape == (32, 6)
    assert table.offsets.dtype == np.int64
    assert table.sizes == (3072, 192, 3072, 192, 3072, 192)
    assert table.run_bytes == 9792
    assert table.contiguous.all()
    tensors = unpack(TINY / SECOND)
    names = [f"{part}.weight_{kind}" for part in ("w1", "w2", "w3") for kind in ("packed", "scale")]
    for expert in (0, 2, 10, 31):  # their order in the file is that of their names: 0, 1, 10, 11, ...
        with open(checkpoint.files[table.file[expert]].path, "rb") as raw:
            for column, name in enumerate(names):
                raw.seek(table.offsets[expert, column])
                stored = raw.read(table.sizes[column])
                assert stored == tensors[f"{LAYER4}block_sparse_moe.experts.{expert}.{name}"][2]


def test_plain_experts_have_scales_of_no_bytes():
    table = Checkpoint.open(LINEAR).experts(2)
    assert table.format is WeightFormat.BF16
    assert table.sizes == (13824, 0, 13824, 0, 13824, 0)
    assert (table.offsets[:, 1] == table.offsets[:, 0] + 13824).all()
    assert table.contiguous.all()


def test_a_dense_layer_has_no_experts():
    with pytest.raises(KeyError):
        Checkpoint.open(TINY).experts(0)


def test_experts_out_of_order_or_apart_are_found_and_marked(tiny):
    tensors = unpack(tiny / SECOND)
    moved = tensors.pop(f"{EXPERT}scale")
    repack(tiny / SECOND, {f"{EXPERT}scale": moved, **tensors})
    table = Checkpoint.open(tiny).experts(4)
    assert not table.contiguous[17]
    assert table.contiguous.sum() == 31
    with open(tiny / SECOND, "rb") as raw:
        raw.seek(table.offsets[17, 3])
        assert raw.read(192) == moved[2]


def test_an_expert_may_be_spread_over_two_files(tiny):
    tensors = unpack(tiny / SECOND)
    moved = {f"{EXPERT}{kind}": tensors.pop(f"{EXPERT}{kind}") for kind in ("packed", "scale")}
    repack(tiny / SECOND, tensors)
    other = "model-00003-of-000007.safetensors"
    repack(tiny / other, unpack(tiny / other) | moved)
    edit_json(tiny / INDEX, lambda index: index["weight_map"].update(dict.fromkeys(moved, other)))
    table = Checkpoint.open(tiny).experts(4)
    assert table.files[17].tolist() == [1, 1, 2, 2, 1, 1]
    assert not table.contiguous[17]
    assert table.contiguous.sum() == 31


def test_a_missing_expert_is_found_when_the_checkpoint_is_opened(tiny):
    (tiny / INDEX).unlink()
    change(tiny, f"{EXPERT}scale", lambda *_: None)
    with pytest.raises(TensorError) as caught:
        Checkpoint.open(tiny)
    assert (
        f"expert 17 of layer 4 is not whole: tensor {EXPERT}scale is in none of the 7 shards"
        in caught.value.what
    )


def test_all_experts_of_a_layer_missing_is_found(tiny):
    (tiny / INDEX).unlink()
    tensors = unpack(tiny / SECOND)
    experts = "layers.4.block_sparse_moe.experts"
    repack(tiny / SECOND, {name: tensor for name, tensor in tensors.items() if experts not in name})
    with pytest.raises(TensorError, match=r"expert 0 of layer 4 is not whole.*192 tensors"):
        Checkpoint.open(tiny)


def test_a_tensor_the_index_promises_and_the_shard_lacks_is_named(tiny):
    change(tiny, f"{EXPERT}scale", lambda *_: None)
    with pytest.raises(ShardError) as caught:
        Checkpoint.open(tiny)
    assert f"{tiny / SECOND} does not hold tensor {EXPERT}scale" in caught.value.what


def test_a_needed_tensor_that_no_one_promises_is_named_with_its_shape(tiny):
    change(tiny, ROUTER, lambda *_: None)
    edit_json(tiny / INDEX, lambda index: index["weight_map"].pop(ROUTER))
    with pytest.raises(TensorError) as caught:
        Checkpoint.open(tiny)
    assert f"tensor {ROUTER} [32, 160] is needed" in caught.value.what


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (ROUTER, [160, 32]),
        (ROUTER, [5120]),
        (f"{LAYER4}self_attn.q_conv1d.weight", [128, 4, 1]),
        (f"{LAYER4}mlp_res_proj.weight", [160, 1]),
        (f"{LAYER4}input_layernorm.weight", [160, 1]),
        (f"{EXPERT}packed", [64, 48]),
        (f"{EXPERT}scale", [192]),
    ],
)
def test_the_right_number_of_elements_in_the_wrong_shape_is_refused(tiny, name, shape):
    change(tiny, name, lambda dtype, _, data: (dtype, shape, data))
    with pytest.raises(TensorError) as caught:
        Checkpoint.open(tiny)
    assert name in caught.value.what
    assert f"has the shape {shape}, config.json asks for" in caught.value.what
    assert str(tiny / SECOND) in caught.value.what


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(ROUTER, "F64"), (ROUTER, "F8_E4M3"), (f"{EXPERT}packed", "I8"), (f"{EXPERT}scale", "F8_E8M0")],
)
def test_a_type_that_is_not_accepted_is_refused(tiny, name, dtype):
    size = {"F64": 8}.get(dtype, 1)
    change(tiny, name, lambda _, old, __: (dtype, old, bytes(size * int(np.prod(old)))))
    with pytest.raises(TensorError) as caught:
        Checkpoint.open(tiny)
    assert f"tensor {name} is stored as {dtype}; accepted: " in caught.value.what


@pytest.mark.parametrize("dtype", ["F16", "F32"])
def test_dense_tensors_may_be_f16_or_f32_and_are_widened_exactly(tiny, dtype):
    numpy_type = {"F16": np.float16, "F32": np.float32}[dtype]
    values = np.linspace(-3, 3, 32 * 160).astype(numpy_type).reshape(32, 160)
    change(tiny, ROUTER, lambda _, shape, __: (dtype, shape, values.tobytes()))
    checkpoint = Checkpoint.open(tiny)
    assert checkpoint.dense(ROUTER).format is WeightFormat[dtype]
    read = checkpoint.read_vector(ROUTER)
    assert read.dtype == np.float32
    assert (read == values.astype(np.float32)).all()


def test_bf16_is_widened_exactly(tiny):
    bits = np.arange(5120, dtype=np.uint16).reshape(32, 160)
    change(tiny, ROUTER, lambda dtype, shape, _: (dtype, shape, bits.tobytes()))
    read = Checkpoint.open(tiny).read_vector(ROUTER)
    assert (read.view(np.uint32) == bits.astype(np.uint32) << 16).all()


@pytest.mark.parametrize(("bits", "word"), [(0x7FC0, "nan"), (0x7F80, "inf"), (0xFF80, "-inf")])
def test_a_number_that_is_not_finite_is_named_with_its_place(tiny, bits, word):
    def spoil(dtype, shape, data):
        words = np.frombuffer(data, np.uint16).copy()
        words[3 * 160 + 7] = bits
        return dtype, shape, words.tobytes()

    change(tiny, ROUTER, spoil)
    checkpoint = Checkpoint.open(tiny)
    with pytest.raises(NumberError) as caught:
        checkpoint.read_vector(ROUTER)
    assert f"tensor {ROUTER} holds {word} at [3, 7]" in caught.value.what


@pytest.mark.parametrize("shape", [[4], [1, 1, 4, 1], [32], [2, 16]])
def test_a_log_may_have_any_shape_of_enough_entries(tiny, shape):
    name = f"{LAYER4}self_attn.A_log"
    change(tiny, name, lambda dtype, _, data: (dtype, shape, data[: 4 * int(np.prod(shape))]))
    assert Checkpoint.open(tiny).layer(4)["A_log"].shape == tuple(shape)


def test_an_a_log_of_too_few_entries_is_refused(tiny):
    name = f"{LAYER4}self_attn.A_log"
    change(tiny, name, lambda dtype, _, data: (dtype, [3], data[:12]))
    with pytest.raises(TensorError, match="asks for at least 4 numbers"):
        Checkpoint.open(tiny)


def test_experts_of_one_layer_in_two_forms_are_refused(tmp_path):
    directory = copy(LINEAR, tmp_path / "linear")
    shard = directory / "model-00002-of-00003.safetensors"
    tensors = unpack(shard)
    name = "model.layers.2.block_sparse_moe.experts.5.w2.weight"
    _, shape, data = tensors[name]
    repack(shard, tensors | {name: ("F32", shape, data + data)})
    with pytest.raises(TensorError) as caught:
        Checkpoint.open(directory)
    assert "two forms" in caught.value.what
    assert name in caught.value.what


def test_mxfp4_experts_need_widths_of_whole_groups(tiny):
    edit_json(tiny / "config.json", lambda tree: tree["text_config"].update(routed_expert_hidden_size=80))
    with pytest.raises(ConfigError, match="80 columns"):
        Checkpoint.open(tiny)


def test_a_config_of_another_model_is_refused(tiny):
    edit_json(tiny / "config.json", lambda tree: tree["text_config"].update(hidden_size=192))
    with pytest.raises(TensorError, match="192"):
        Checkpoint.open(tiny)


def test_tied_embeddings_need_no_head(tiny):
    shard = tiny / "model-00005-of-000007.safetensors"
    tensors = unpack(shard)
    del tensors["language_model.lm_head.weight"]
    repack(shard, tensors)
    edit_json(tiny / INDEX, lambda index: index["weight_map"].pop("language_model.lm_head.weight"))
    edit_json(tiny / "config.json", lambda tree: tree.update(tie_word_embeddings=True))
    final = Checkpoint.open(tiny).final()
    assert final["lm_head"] == final["embed_tokens"]


def test_a_missing_shard_is_named_with_the_command_that_fetches_it(tiny):
    (tiny / SECOND).unlink()
    with pytest.raises(ShardError) as caught:
        Checkpoint.open(tiny)
    listed = json.loads((tiny / INDEX).read_bytes())["weight_map"].values()
    count = f"{list(listed).count(SECOND):,}"
    assert f"{SECOND} of the 7 shards" in caught.value.what
    assert f"the index puts {count} tensors into it" in caught.value.what
    assert f"kimistream pull moonshotai/Kimi-K3 {tiny} --files {SECOND}" in caught.value.remedy


def test_the_image_tower_may_be_absent_but_not_broken(tiny):
    whole = Checkpoint.open(tiny).identity
    tower = tiny / "model-00007-of-000007.safetensors"
    raw = tower.read_bytes()
    tower.unlink()
    assert Checkpoint.open(tiny).identity == whole
    tower.write_bytes(raw[:-1])
    with pytest.raises(ShardError, match="cut short by 1 bytes"):
        Checkpoint.open(tiny)


def test_shards_may_lie_in_several_directories(tiny, tmp_path):
    whole = Checkpoint.open(tiny).identity
    other = tmp_path / "other"
    other.mkdir()
    shutil.move(tiny / SECOND, other / SECOND)
    with pytest.raises(ShardError, match=SECOND):
        Checkpoint.open(tiny)
    checkpoint = Checkpoint.open(tiny, also=[other])
    assert checkpoint.identity == whole
    assert checkpoint.files[1].path == other / SECOND
    (tiny / SECOND).write_bytes(b"a broken copy")
    with pytest.raises(ShardError, match=f"is there twice: {tiny / SECOND} .13 bytes"):
        Checkpoint.open(tiny, also=[other])
    with pytest.raises(CheckpointError, match="nowhere: does not exist"):
        Checkpoint.open(tiny, also=[tmp_path / "nowhere"])


def test_without_an_index_the_file_names_decide(tiny):
    whole = Checkpoint.open(tiny)
    (tiny / INDEX).unlink()
    checkpoint = Checkpoint.open(tiny)
    assert checkpoint.files == whole.files
    assert checkpoint.identity == whole.identity
    (tiny / SECOND).unlink()
    with pytest.raises(ShardError, match=f"{SECOND} is missing"):
        Checkpoint.open(tiny)


def test_a_single_file_is_a_checkpoint(tmp_path):
    directory = tmp_path / "one"
    directory.mkdir()
    (directory / "config.json").symlink_to(LINEAR / "config.json")
    tensors = {}
    for path in sorted(LINEAR.glob("*.safetensors")):
        tensors |= unpack(path)
    repack(directory / "model.safetensors", tensors)
    assert len(Checkpoint.open(directory).files) == 1


def test_a_directory_without_shards_is_refused(tmp_path):
    (tmp_path / "config.json").symlink_to(TINY / "config.json")
    with pytest.raises(ShardError, match=r"neither model\.safetensors\.index\.json nor any"):
        Checkpoint.open(tmp_path)


def test_a_tensor_in_two_shards_is_refused_with_both(tiny):
    for name in (ROUTER, f"{EXPERT}packed"):
        extra = unpack(TINY / SECOND)[name]
        other = tiny / "model-00003-of-000007.safetensors"
        tensors = unpack(TINY / other.name)
        repack(other, tensors | {name: extra})
        with pytest.raises(ShardError) as caught:
            Checkpoint.open(tiny)
        assert f"tensor {name} is in {tiny / SECOND} and in {other}" in caught.value.what


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a valid index"),
        (b"{", "not a valid index"),
        (b"[]", "not a valid index"),
        (b'{"metadata": {}}', "not a valid index"),
        (b'{"weight_map": []}', "not a valid index"),
        (b'{"weight_map": {"a": 1}}', "not a valid index"),
        (b'{"weight_map": {}}', "lists 0 tensors"),
        (b'{"weight_map": {"a": "../secret.safetensors"}}', "not the name of a shard"),
        (b'{"weight_map": {"a": "model.gguf"}}', "not the name of a shard"),
        (b'{"weight_map": {"a": "' + b"x" * 300 + b'.safetensors"}}', "not the name of a shard"),
        (b'{"weight_map": {"a": "\\u0000.safetensors"}}', "not the name of a shard"),
    ],
)
def test_an_index_that_does_not_hold_is_refused(tiny, content, says):
    rewrite(tiny / INDEX, content)
    with pytest.raises(ShardError) as caught:
        Checkpoint.open(tiny)
    assert says in caught.value.what
    assert str(tiny / INDEX) in caught.value.what


def test_the_identity_is_that_of_the_contents_not_of_the_place(tiny, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(TINY, moved)
    assert Checkpoint.open(moved).identity == Checkpoint.open(tiny).identity == Checkpoint.open(TINY).identity


def test_another_training_of_the_same_shape_has_another_identity(tiny):
    before = Checkpoint.open(tiny).identity

    def retrain(dtype, shape, data):
        return dtype, shape, bytes(len(data))

    change(tiny, f"{LAYER4}block_sparse_moe.gate.e_score_correction_bias", retrain)
    assert Checkpoint.open(tiny).identity != before


def test_another_config_has_another_identity(tiny):
    before = Checkpoint.open(tiny).identity
    edit_json(tiny / "config.json", lambda tree: tree["text_config"].update(rms_norm_eps=1e-6))
    assert Checkpoint.open(tiny).identity != before


def test_an_unknown_dense_name_is_refused():
    with pytest.raises(TensorError, match="no tensor model"):
        Checkpoint.open(LINEAR).dense("model.nothing")


def test_a_shard_of_experts_alone_counts_for_the_identity(tmp_path):
    directory = copy(LINEAR, tmp_path / "linear")
    shard = directory / "model-00002-of-00003.safetensors"
    tensors = unpack(shard)
    experts = {name: tensor for name, tensor in tensors.items() if ".experts." in name}
    repack(shard, {name: tensor for name, tensor in tensors.items() if name not in experts})
    extra = directory / "more.safetensors"
    repack(extra, experts)
    (directory / INDEX).unlink()
    before = Checkpoint.open(directory).identity
    name = min(experts)
    dtype, shape, data = experts[name]
    repack(extra, experts | {name: (dtype, shape, bytes(len(data)))})
    assert Checkpoint.open(directory).identity != before


def test_the_experts_are_kept_as_arrays_of_a_few_bytes(tmp_path):
    """The full shape has 494,592 expert tensors; as Python objects they would take 150 MB and more."""
    small = {"hidden": 32, "kda_heads": 1, "kda_head_dim": 16, "mla_heads": 1, "q_lora_rank": 16}
    small |= {"kv_lora_rank": 16, "nope_head_dim": 8, "rope_head_dim": 4, "v_head_dim": 8, "latent": 32}
    small |= {"dense_intermediate": 32, "expert_intermediate": 32, "vocab": 512}
    synth(tmp_path / "made", Sizes(layers=4, experts=896, **small))
    Checkpoint.open(tmp_path / "made")
    tracemalloc.start()
    try:
        checkpoint = Checkpoint.open(tmp_path / "made")
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    tensors = 3 * 896 * 6
    assert checkpoint.experts(3).contiguous.all()
    assert kept < 40 * tensors
    assert peak < 12_000_000  # one shard's header at a time, and the index
