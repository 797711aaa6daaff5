"""What config.json may say, and how everything else is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from broken_checkpoints import LINEAR, TINY

from kimistream.checkpoint.config import ModelConfig, load_config, parse_config
from kimistream.checkpoint.released import Sizes, config_tree
from kimistream.errors import CheckpointError, ConfigError


def tree(flat: bool = False) -> Any:
    return json.loads(((LINEAR if flat else TINY) / "config.json").read_bytes())


def parse(values: Any) -> ModelConfig:
    return parse_config(json.dumps(values).encode())


def with_field(path: str, value: Any, flat: bool = False) -> Any:
    """The golden config with the field at the dotted path replaced; `...` removes it."""
    values = tree(flat)
    *sections, name = path.split(".")
    place = values
    for section in sections:
        place = place[section]
    if value is ...:
        del place[name]
    else:
        place[name] = value
    return values


def test_the_nested_form_is_read():
    config = load_config(TINY)
    assert config.nested
    assert config.prefix == "language_model.model."
    assert config.head_name == "language_model.lm_head.weight"
    assert "".join(kind[0] for kind in config.layer_kinds) == "kkkmkkkmkkkmm"
    assert config.ffn_kinds == ("dense",) + 12 * ("moe",)
    assert config.moe_layers == tuple(range(1, 13))
    assert (config.kda.num_heads, config.kda.head_dim, config.kda.width) == (4, 32, 128)
    assert config.kda.gate_lower_bound == -5.0
    assert config.kda.full_rank_gate
    assert (config.mla.q_lora_rank, config.mla.latent_dim, config.mla.q_head_dim) == (48, 80, 48)
    assert (config.moe.num_experts, config.moe.top_k, config.moe.latent_size) == (32, 4, 96)
    assert config.expert_width == 96
    assert (config.situ_beta, config.situ_linear_beta) == (4.0, 25.0)
    assert (config.bos_id, config.eos_ids, config.pad_id) == (508, (509,), 511)


def test_the_flat_form_is_read():
    config = load_config(LINEAR)
    assert not config.nested
    assert config.head_name == "lm_head.weight"
    assert config.kda.gate_lower_bound is None
    assert not config.kda.full_rank_gate
    assert config.mla.q_lora_rank is None
    assert not config.mla.output_gate
    assert config.attn_res_block_size is None
    assert (config.moe.latent_size, config.expert_width) == (None, 144)
    assert config.moe.scaling_factor == 2.446
    assert config.activation == "silu"


def test_the_built_in_tree_is_the_released_shape():
    config = parse(config_tree(Sizes()))
    assert config.num_layers == 93
    mla = [i for i, kind in enumerate(config.layer_kinds) if kind == "mla"]
    assert mla == [*range(3, 92, 4), 92]
    assert (config.bos_id, config.eos_ids, config.pad_id) == (163584, (163586,), 163839)
    assert (config.hidden_size, config.dense_intermediate_size) == (7168, 33792)
    assert (config.moe.num_experts, config.moe.top_k, config.moe.intermediate_size) == (896, 16, 3072)


TEXT = """
    hidden_size num_hidden_layers vocab_size num_attention_heads linear_attn_config kv_lora_rank
    qk_nope_head_dim qk_rope_head_dim v_head_dim mla_use_nope first_k_dense_replace moe_layer_freq
    intermediate_size num_experts num_experts_per_token num_shared_experts moe_intermediate_size
    latent_moe_use_norm moe_renormalize routed_scaling_factor moe_router_activation_func num_expert_group
    topk_group hidden_act activation_situ_beta activation_situ_linear_beta rms_norm_eps
"""
LINEAR_ATTN = "full_attn_layers kda_layers head_dim num_heads short_conv_kernel_size"
NEEDED = ["model_type", "text_config"]
NEEDED += [f"text_config.{name}" for name in TEXT.split()]
NEEDED += [f"text_config.linear_attn_config.{name}" for name in LINEAR_ATTN.split()]


@pytest.mark.parametrize("path", NEEDED)
def test_a_needed_field_that_is_missing_is_named(path):
    with pytest.raises(ConfigError) as caught:
        parse(with_field(path, ...))
    assert f"{path} is missing" in caught.value.what
    assert caught.value.remedy


REFUSED = [
    ("model_type", "llama"),
    ("text_config", [1]),
    ("text_config.model_type", "kimi_k2"),
    ("text_config.hidden_size", 0),
    ("text_config.hidden_size", 160.0),
    ("text_config.hidden_size", "160"),
    ("text_config.hidden_size", True),
    ("text_config.hidden_size", 10**30),
    ("text_config.num_hidden_layers", 10**9),
    ("text_config.vocab_size", -1),
    ("text_config.hidden_act", "gelu"),
    ("text_config.moe_router_activation_func", "tanh"),
    ("text_config.mla_use_nope", False),
    ("text_config.mla_use_nope", 1),
    ("text_config.mla_use_output_gate", "yes"),
    ("text_config.first_k_dense_replace", 14),
    ("text_config.moe_layer_freq", 2),
    ("text_config.num_experts_per_token", 33),
    ("text_config.num_experts_per_token", 0),
    ("text_config.num_expert_group", 5),
    ("text_config.topk_group", 2),
    ("text_config.topk_method", "greedy"),
    ("text_config.rms_norm_eps", -1e-5),
    ("text_config.rms_norm_eps", 0),
    ("text_config.routed_scaling_factor", -2.446),
    ("text_config.routed_scaling_factor", 0),
    ("text_config.activation_situ_beta", -4.0),
    ("text_config.activation_situ_linear_beta", 0.0),
    ("text_config.attn_res_block_size", 0),
    ("text_config.num_key_value_heads", 2),
    ("text_config.kv_lora_rank", 60),
    ("text_config.rope_scaling", {"type": "yarn", "factor": 4}),
    ("text_config.add_cross_attention", True),
    ("text_config.pruned_heads", {"1": [0]}),
    ("text_config.attention_bias", True),
    ("text_config.eos_token_id", 512),
    ("text_config.eos_token_id", [509, 509]),
    ("text_config.bos_token_id", -1),
    ("text_config.tie_word_embeddings", "no"),
    ("text_config.new_attention_trick", 3),
    ("text_config.linear_attn_config.head_dim", 24),
    ("text_config.linear_attn_config.gate_lower_bound", 5.0),
    ("text_config.linear_attn_config.short_conv_kernel_size", 0),
    ("text_config.linear_attn_config.use_full_rank_gate", 1),
    ("text_config.linear_attn_config.kda_layers", "1,2,3"),
    ("text_config.linear_attn_config.conv_bias", True),
    ("text_config.quantization_config.quant_method", "gptq"),
    ("text_config.quantization_config.format", "nvfp4-pack-quantized"),
    ("text_config.quantization_config.kv_cache_scheme", {"num_bits": 8}),
    ("text_config.quantization_config.config_groups.group_0.weights.group_size", 16),
    ("text_config.quantization_config.config_groups.group_0.weights.num_bits", 8),
    ("text_config.quantization_config.config_groups.group_0.input_activations", {"num_bits": 4}),
    ("quantization_config", {"quant_method": "fp8"}),
]


@pytest.mark.parametrize(("path", "value"), REFUSED)
def test_a_value_that_is_not_understood_is_named_with_its_path(path, value):
    with pytest.raises(ConfigError) as caught:
        parse(with_field(path, value))
    named = path if path != "quantization_config" else "quantization_config.quant_method"
    assert named in caught.value.what
    assert "understood: " in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("kda", "mla", "says"),
    [
        ([1, 2, 3, 5, 6, 7, 9, 10, 11], [4, 8, 12, 14], "contains 14"),
        ([0, 1, 2, 3, 5, 6, 7, 9, 10, 11], [4, 8, 12, 13], "contains 0"),
        ([1, 2, 3, 5, 6, 7, 9, 10], [4, 8, 12, 13], "layer 11 of 13 (counted from one) is in neither"),
        ([1, 2, 3, 4, 5, 6, 7, 9, 10, 11], [4, 8, 12, 13], "layer 4 of 13 (counted from one) is in both"),
        ([1, 1, 2, 3, 5, 6, 7, 9, 10, 11], [4, 8, 12, 13], "contains 1"),
        ([1, 2, 3.0, 5, 6, 7, 9, 10, 11], [4, 8, 12, 13], "contains 3.0"),
        ([True, 2, 3, 5, 6, 7, 9, 10, 11], [4, 8, 12, 13], "contains true"),
    ],
)
def test_every_layer_is_in_exactly_one_list(kda, mla, says):
    values = tree()
    values["text_config"]["linear_attn_config"] |= {"kda_layers": kda, "full_attn_layers": mla}
    with pytest.raises(ConfigError) as caught:
        parse(values)
    assert says in caught.value.what


def test_fields_that_do_not_change_the_text_are_ignored():
    values = tree()
    values["text_config"] |= {"top_k": 3, "temperature": 0.1, "max_length": 7, "_note": "x", "rope_theta": 5}
    values["vision_config"] = {"vt_num_hidden_layers": "many"}
    values["text_config"]["some_new_switch"] = False
    assert parse(values) == load_config(TINY)


def test_a_missing_switch_is_off_and_a_missing_bound_is_none():
    values = tree()
    del values["text_config"]["mla_use_output_gate"]
    del values["text_config"]["linear_attn_config"]["use_full_rank_gate"]
    values["text_config"]["linear_attn_config"]["gate_lower_bound"] = None
    config = parse(values)
    assert not config.mla.output_gate
    assert not config.kda.full_rank_gate
    assert config.kda.gate_lower_bound is None


def test_the_config_without_quantization_is_understood():
    assert parse(with_field("text_config.quantization_config", ...)) == load_config(TINY)


def test_no_linear_limit_is_nan():
    assert math.isnan(parse(with_field("text_config.activation_situ_linear_beta", None)).situ_linear_beta)


def test_several_end_tokens_are_understood():
    assert parse(with_field("text_config.eos_token_id", [509, 510])).eos_ids == (509, 510)


def test_the_ids_may_stand_outside_only():
    assert parse(with_field("text_config.eos_token_id", ...)).eos_ids == (509,)


def test_no_end_token_anywhere_is_refused():
    values = with_field("text_config.eos_token_id", ...)
    del values["eos_token_id"]
    with pytest.raises(ConfigError, match=r"eos_token_id is missing"):
        parse(values)


def test_tied_embeddings_make_the_embedding_the_head():
    config = parse(with_field("tie_word_embeddings", True))
    assert config.tied
    assert config.head_name == "language_model.model.embed_tokens.weight"


def test_grouped_routing_is_understood():
    values = tree(flat=True)
    values |= {"num_expert_group": 4, "topk_group": 2, "num_experts_per_token": 12}
    assert (parse(values).moe.num_groups, parse(values).moe.topk_groups) == (4, 2)
    values["num_experts_per_token"] = 13
    with pytest.raises(
        ConfigError, match="num_experts_per_token = 13; understood: a whole number from 1 to 12"
    ):
        parse(values)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe", b"[]", b"null", b'{"model_type": "kimi_k3"}', b"[" * 9999]
)
def test_what_is_not_a_config_at_all_is_refused(data):
    with pytest.raises(ConfigError) as caught:
        parse_config(data, "some/config.json")
    assert "some/config.json" in caught.value.what


def test_no_directory_and_no_config_are_told_apart(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        load_config(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="holds no config"):
        load_config(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="is not a directory"):
        load_config(tmp_path / "file")
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_config(tmp_path)
