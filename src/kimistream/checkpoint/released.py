"""The released shape of Kimi K3: its sizes, its config.json, and which tensor lies in which shard.

Knows: the sizes of the released model, each of which may be replaced; the released layout.
Does not know: what the tensors contain, or how they are written.

Layout (ARCHITECTURE section 2): layer L, counted from 0, is shard L + 1; embedding, head and final norms
are the next shard; the image tower's projector and the tower itself are the last two. Inside a shard the
tensors are ordered by type (float32, bf16, bytes) and then by name, which makes the dense tensors one run,
and the six tensors of an expert one run. The header is compact JSON in that order, without `__metadata__`,
filled with spaces to a multiple of 8 bytes. With the released sizes this gives the published size of each
of the 96 files, 1,560,936,091,448 bytes in all, and of the index to the byte: there is no difference left
to explain. (With the `__metadata__` that other writers put in, each file would be 24 or 32 bytes longer.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from kimistream.checkpoint.config import ModelConfig
from kimistream.checkpoint.experts import GROUP
from kimistream.checkpoint.names import (
    EXPERT_PARTS,
    expert_name,
    expert_shapes,
    final_tensors,
    layer_tensors,
)

FLOAT32_ROLES = frozenset(
    ("A_log", "dt_bias", "q_conv1d", "k_conv1d", "v_conv1d", "o_norm", "e_score_correction_bias")
)
"""The dense tensors that the released files store as float32; all others are bf16."""
BYTES = {"F32": 4, "BF16": 2, "U8": 1}


@dataclass(frozen=True, slots=True)
class Vision:
    """The sizes of the image tower (only its tensors' shapes are of interest here)."""

    blocks: int = 27
    hidden: int = 1024
    qkv: int = 1536
    intermediate: int = 4096
    positions: int = 64
    patch: int = 14


@dataclass(frozen=True, slots=True)
class Sizes:
    """The released model's sizes. `mla_layers` counts from one; None is every fourth layer and the last."""

    layers: int = 93
    experts: int = 896
    vocab: int = 163840
    hidden: int = 7168
    kda_heads: int = 96
    kda_head_dim: int = 128
    a_log_entries: int = 128
    conv_kernel: int = 4
    mla_heads: int = 96
    q_lora_rank: int = 1536
    kv_lora_rank: int = 512
    nope_head_dim: int = 128
    rope_head_dim: int = 64
    v_head_dim: int = 128
    dense_intermediate: int = 33792
    top_k: int = 16
    shared_experts: int = 2
    expert_intermediate: int = 3072
    latent: int = 3584
    block_size: int = 12
    context: int = 1048576
    mla_layers: tuple[int, ...] | None = None
    vision: Vision | None = None

    def mla(self) -> list[int]:
        """The MLA layers, counted from one."""
        if self.mla_layers is not None:
            return sorted(self.mla_layers)
        return sorted({*range(4, self.layers + 1, 4), self.layers})


def config_tree(sizes: Sizes) -> dict[str, Any]:
    """The content of config.json, in the nested form, without what the text model does not need.

    The 256 special ids are the end of the vocabulary, in the released order.
    """
    first = sizes.vocab - 256
    ids = {"bos_token_id": first, "eos_token_id": first + 2, "pad_token_id": first + 255}
    mla = sizes.mla()
    text = {
        "model_type": "kimi_linear",
        "dtype": "bfloat16",
        **ids,
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "vocab_size": sizes.vocab,
        "num_attention_heads": sizes.mla_heads,
        "num_key_value_heads": sizes.mla_heads,
        "linear_attn_config": {
            "full_attn_layers": mla,
            "gate_lower_bound": -5.0,
            "head_dim": sizes.kda_head_dim,
            "kda_layers": [number for number in range(1, sizes.layers + 1) if number not in mla],
            "num_heads": sizes.kda_heads,
            "short_conv_kernel_size": sizes.conv_kernel,
            "use_full_rank_gate": True,
        },
        "q_lora_rank": sizes.q_lora_rank,
        "kv_lora_rank": sizes.kv_lora_rank,
        "qk_nope_head_dim": sizes.nope_head_dim,
        "qk_rope_head_dim": sizes.rope_head_dim,
        "v_head_dim": sizes.v_head_dim,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "intermediate_size": sizes.dense_intermediate,
        "num_experts": sizes.experts,
        "num_experts_per_token": sizes.top_k,
        "num_shared_experts": sizes.shared_experts,
        "moe_intermediate_size": sizes.expert_intermediate,
        "routed_expert_hidden_size": sizes.latent,
        "latent_moe_use_norm": True,
        "moe_renormalize": True,
        "routed_scaling_factor": 1.0,
        "moe_router_activation_func": "sigmoid",
        "num_expert_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "use_grouped_topk": True,
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "attn_res_block_size": sizes.block_size,
        "rms_norm_eps": 1e-05,
        "max_position_embeddings": sizes.context,
        "tie_word_embeddings": False,
        "quantization_config": _QUANTIZATION,
    }
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "dtype": "bfloat16",
        **ids,
        "media_placeholder_token_id": first + 21,
        "tie_word_embeddings": False,
        "text_config": text,
    }


_QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
    "format": "mxfp4-pack-quantized",
    "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "format": "mxfp4-pack-quantized",
            "input_activations": None,
            "targets": ["Linear"],
            "weights": {
                "dynamic": False,
                "group_size": GROUP,
                "num_bits": 4,
                "scale_dtype": "torch.uint8",
                "strategy": "group",
                "symmetric": True,
                "type": "float",
            },
        }
    },
    "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
}


class Stored(NamedTuple):
    """A tensor of the layout. `role` is that of `names`, "w1.weight_packed" and so on, or "vision"."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * BYTES[self.dtype]


class Placed(NamedTuple):
    """A tensor with its first byte in the file."""

    tensor: Stored
    offset: int


def shard_name(number: int, count: int) -> str:
    """The name of shard `number` (from 1) of `count`, as released."""
    return f"model-{number:05d}-of-{count:06d}.safetensors"


def shard_count(config: ModelConfig, sizes: Sizes) -> int:
    """How many shards the layout has."""
    return config.num_layers + (1 if sizes.vision is None else 3)


def shard(config: ModelConfig, sizes: Sizes, number: int) -> list[Stored]:
    """The tensors of shard `number` (from 1), in no particular order."""
    if number <= config.num_layers:
        return _layer(config, sizes, number - 1)
    if number == config.num_layers + 1:
        return [Stored(n.name, role, "BF16", n.shape) for role, n in final_tensors(config).items()]
    if sizes.vision is None:
        return []
    return _vision(sizes.vision, config.hidden_size)[number - config.num_layers - 2]


def shard_kind(config: ModelConfig, number: int) -> tuple[object, ...]:
    """Shards of one kind have tensors of the same sizes, and names of the same lengths."""
    layer = number - 1
    if layer >= config.num_layers:
        return (number,)
    return config.layer_kinds[layer], config.ffn_kinds[layer], len(str(layer))


def _layer(config: ModelConfig, sizes: Sizes, layer: int) -> list[Stored]:
    tensors = []
    for role, need in layer_tensors(config, layer).items():
        shape = (sizes.a_log_entries,) if role == "A_log" else need.shape
        tensors.append(Stored(need.name, role, "F32" if role in FLOAT32_ROLES else "BF16", shape))
    if config.ffn_kinds[layer] == "moe":
        for expert in range(config.moe.num_experts):
            for part, (rows, cols) in zip(EXPERT_PARTS, expert_shapes(config), strict=True):
                for suffix, columns in (("weight_packed", cols // 2), ("weight_scale", cols // GROUP)):
                    name = expert_name(config, layer, expert, part, suffix)
                    tensors.append(Stored(name, f"{part}.{suffix}", "U8", (rows, columns)))
    return tensors


def _vision(vision: Vision, text_hidden: int) -> list[list[Stored]]:
    def bf16(name: str, *shape: int) -> Stored:
        return Stored(name, "vision", "BF16", shape)

    hidden, merged = vision.hidden, 4 * vision.hidden
    projector = [
        bf16("mm_projector.post_norm.weight", text_hidden),
        bf16("mm_projector.proj.0.weight", merged, merged),
        bf16("mm_projector.proj.2.weight", text_hidden, merged),
    ]
    tower = [
        bf16("vision_tower.encoder.final_layernorm.weight", hidden),
        bf16("vision_tower.patch_embed.pos_emb.weight", vision.positions, vision.positions, hidden),
        bf16("vision_tower.patch_embed.proj.weight", hidden, 3, vision.patch, vision.patch),
    ]
    for block in range(vision.blocks):
        start = f"vision_tower.encoder.blocks.{block}."
        tower += [
            bf16(f"{start}mlp.fc0.weight", vision.intermediate, hidden),
            bf16(f"{start}mlp.fc1.weight", hidden, vision.intermediate),
            bf16(f"{start}norm0.weight", hidden),
            bf16(f"{start}norm1.weight", hidden),
            bf16(f"{start}wo.weight", hidden, vision.qkv),
            bf16(f"{start}wqkv.weight", 3 * vision.qkv, hidden),
        ]
    return [projector, tower]


def place(tensors: Iterable[Stored]) -> tuple[bytes, list[Placed]]:
    """The first bytes of a shard (length and header), and its tensors in the order of the file."""
    ordered = sorted(tensors, key=lambda tensor: (-BYTES[tensor.dtype], tensor.name))
    header: dict[str, Any] = {}
    begin = 0
    for tensor in ordered:
        end = begin + tensor.nbytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": (begin, end),
        }
        begin = end
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    placed = [Placed(tensor, start + header[tensor.name]["data_offsets"][0]) for tensor in ordered]
    return len(text).to_bytes(8, "little") + text, placed


def index_pieces(config: ModelConfig, sizes: Sizes) -> Iterator[bytes]:
    """The content of model.safetensors.index.json, a shard at a time, a line for each tensor."""
    count = shard_count(config, sizes)
    of_kind = {}
    for number in range(1, count + 1):
        if (kind := shard_kind(config, number)) not in of_kind:
            of_kind[kind] = sum(tensor.nbytes for tensor in shard(config, sizes, number))
    total = sum(of_kind[shard_kind(config, number)] for number in range(1, count + 1))
    yield b'{\n  "metadata": {\n    "total_size": %d\n  },\n  "weight_map": {\n' % total
    for number in range(1, count + 1):
        file = shard_name(number, count)
        lines = [f'    "{name}": "{file}"' for name in sorted(t.name for t in shard(config, sizes, number))]
        yield ",\n".join(lines).encode() + (b",\n" if number < count else b"\n")
    yield b"  }\n}"
