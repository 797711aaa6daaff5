"""The checkpoint's tensors by layer and role: their names, and the shapes the config asks for.

Knows: the naming of Kimi K3 and Kimi-Linear (ARCHITECTURE sections 2 and 10). A role is the tensor's own
last name without ".weight", except `router` (`block_sparse_moe.gate`) and the `shared_` ones.
Does not know: which of the tensors are on disk, or in which form.
"""

from __future__ import annotations

from typing import NamedTuple

from kimistream.checkpoint.config import ModelConfig

VISION_PREFIXES = ("vision_tower.", "mm_projector.")
"""Tensors of the image tower: not needed for text, and allowed to be absent."""

EXPERT_PARTS = ("w1", "w2", "w3")
"""The order in which an expert's matrices lie in its run; each followed by its scales, if any."""


class Need(NamedTuple):
    """A tensor that the config asks for. In `shape`, one -1 stands for "at least `least` in all"."""

    name: str
    shape: tuple[int, ...]
    least: int = 0


def layer_tensors(config: ModelConfig, layer: int) -> dict[str, Need]:
    """Role -> needed tensor, for all tensors of a layer (counted from 0) but its routed experts."""
    hidden = config.hidden_size
    start = f"{config.prefix}layers.{layer}."
    needs = {
        "input_layernorm": Need(f"{start}input_layernorm.weight", (hidden,)),
        "post_attention_layernorm": Need(f"{start}post_attention_layernorm.weight", (hidden,)),
    }
    if config.attn_res_block_size is not None:
        for role in ("self_attention_res", "mlp_res"):
            needs[f"{role}_norm"] = Need(f"{start}{role}_norm.weight", (hidden,))
            needs[f"{role}_proj"] = Need(f"{start}{role}_proj.weight", (1, hidden))
    attention = _kda_shapes(config) if config.layer_kinds[layer] == "kda" else _mla_shapes(config)
    for role, shape in attention.items():
        needs[role] = Need(f"{start}self_attn.{role}.weight", shape)
    if config.layer_kinds[layer] == "kda":
        kda = config.kda
        needs["dt_bias"] = Need(f"{start}self_attn.dt_bias", (kda.width,))
        needs["A_log"] = Need(f"{start}self_attn.A_log", (-1,), kda.num_heads)
    if config.ffn_kinds[layer] == "dense":
        for role, shape in _mlp_shapes(hidden, config.dense_intermediate_size).items():
            needs[role] = Need(f"{start}mlp.{role}.weight", shape)
    else:
        needs |= _moe_needs(config, f"{start}block_sparse_moe.")
    return needs


def _kda_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    kda, hidden = config.kda, config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {f"{x}_proj": (kda.width, hidden) for x in "qkv"}
    shapes |= {f"{x}_conv1d": (kda.width, 1, kda.conv_kernel) for x in "qkv"}
    shapes |= {"f_a_proj": (kda.head_dim, hidden), "f_b_proj": (kda.width, kda.head_dim)}
    if kda.full_rank_gate:
        shapes["g_proj"] = (kda.width, hidden)
    else:
        shapes |= {"g_a_proj": (kda.head_dim, hidden), "g_b_proj": (kda.width, kda.head_dim)}
    return shapes | {
        "b_proj": (kda.num_heads, hidden),
        "o_norm": (kda.head_dim,),
        "o_proj": (hidden, kda.width),
    }


def _mla_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    mla, hidden = config.mla, config.hidden_size
    queries = mla.num_heads * mla.q_head_dim
    values = mla.num_heads * mla.v_head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "kv_a_proj_with_mqa": (mla.latent_dim, hidden),
        "kv_a_layernorm": (mla.kv_lora_rank,),
        "kv_b_proj": (mla.num_heads * (mla.nope_head_dim + mla.v_head_dim), mla.kv_lora_rank),
        "o_proj": (hidden, values),
    }
    if mla.q_lora_rank is None:
        shapes["q_proj"] = (queries, hidden)
    else:
        shapes["q_a_proj"] = (mla.q_lora_rank, hidden)
        shapes["q_a_layernorm"] = (mla.q_lora_rank,)
        shapes["q_b_proj"] = (queries, mla.q_lora_rank)
    if mla.output_gate:
        shapes["g_proj"] = (values, hidden)
    return shapes


def _mlp_shapes(hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}


def _moe_needs(config: ModelConfig, start: str) -> dict[str, Need]:
    moe, hidden = config.moe, config.hidden_size
    needs = {
        "router": Need(f"{start}gate.weight", (moe.num_experts, hidden)),
        "e_score_correction_bias": Need(f"{start}gate.e_score_correction_bias", (moe.num_experts,)),
    }
    if moe.latent_size is not None:
        latent = moe.latent_size
        needs["routed_expert_down_proj"] = Need(f"{start}routed_expert_down_proj.weight", (latent, hidden))
        needs["routed_expert_up_proj"] = Need(f"{start}routed_expert_up_proj.weight", (hidden, latent))
        if moe.latent_norm:
            needs["routed_expert_norm"] = Need(f"{start}routed_expert_norm.weight", (latent,))
    if moe.num_shared_experts:
        width = moe.num_shared_experts * moe.intermediate_size
        for role, shape in _mlp_shapes(hidden, width).items():
            needs[f"shared_{role}"] = Need(f"{start}shared_experts.{role}.weight", shape)
    return needs


def final_tensors(config: ModelConfig) -> dict[str, Need]:
    """Role -> needed tensor outside the layers: `embed_tokens`, `norm`, `lm_head` and the last mix."""
    hidden, matrix = config.hidden_size, (config.vocab_size, config.hidden_size)
    needs = {
        "embed_tokens": Need(f"{config.prefix}embed_tokens.weight", matrix),
        "norm": Need(f"{config.prefix}norm.weight", (hidden,)),
        "lm_head": Need(config.head_name, matrix),
    }
    if config.attn_res_block_size is not None:
        needs["output_attn_res_norm"] = Need(f"{config.prefix}output_attn_res_norm.weight", (hidden,))
        needs["output_attn_res_proj"] = Need(f"{config.prefix}output_attn_res_proj.weight", (1, hidden))
    return needs


def layer_tensor(config: ModelConfig, layer: int, role: str) -> str:
    """The name of one tensor of a layer. KeyError for a role the layer does not have."""
    return layer_tensors(config, layer)[role].name


def final_tensor(config: ModelConfig, role: str) -> str:
    """The name of one tensor outside the layers. KeyError for a role the model does not have."""
    return final_tensors(config)[role].name


def embedding_name(config: ModelConfig) -> str:
    """The tensor of the embedding, `[vocab, hidden]`."""
    return final_tensor(config, "embed_tokens")


def head_name(config: ModelConfig) -> str:
    """The tensor of the output head, `[vocab, hidden]`; the embedding itself where they are tied."""
    return config.head_name


def expert_name(config: ModelConfig, layer: int, expert: int, part: str, suffix: str) -> str:
    """`part` is "w1", "w2" or "w3"; `suffix` is "weight", "weight_packed" or "weight_scale"."""
    return f"{experts_prefix(config, layer)}.{expert}.{part}.{suffix}"


def expert_of(config: ModelConfig, tensor: str) -> tuple[int, int, int] | None:
    """(layer, expert, column of its table) of a routed expert's tensor by its name; None for another's."""
    start, dot, end = tensor.partition(".block_sparse_moe.experts.")
    words = end.split(".")
    layer = start.removeprefix(f"{config.prefix}layers.")
    if not dot or len(words) != 3 or words[1] not in EXPERT_PARTS or not (layer + words[0]).isdecimal():
        return None
    if not int(words[0]) < config.moe.num_experts:
        return None
    return int(layer), int(words[0]), 2 * EXPERT_PARTS.index(words[1]) + (words[2] == "weight_scale")


def experts_prefix(config: ModelConfig, layer: int) -> str:
    """What the names of a layer's experts begin with, without the dot before the expert's number."""
    return f"{config.prefix}layers.{layer}.block_sparse_moe.experts"


def expert_shapes(config: ModelConfig) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """`[out, in]` of w1, w2 and w3: gate and up from the expert's width, down back to it."""
    width, inner = config.expert_width, config.moe.intermediate_size
    return (inner, width), (width, inner), (inner, width)
