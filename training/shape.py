"""The size of the embedded model, and its `config.json` in the released form.

Knows: every dimension, and the relation of the special ids to the vocabulary (the same as K3's).
Does not know: weights, data, or how long training takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """All mechanisms of K3, small. Layers are counted from 0."""

    hidden: int = 128
    layers: int = 12
    block: int = 4
    """`attn_res_block_size`: snapshots are pushed at layers 0, 4 and 8."""
    base_vocab: int = 1792
    kda_heads: int = 4
    kda_dim: int = 32
    conv: int = 4
    lower_bound: float = -5.0
    mla_heads: int = 4
    q_rank: int = 64
    kv_rank: int = 64
    nope: int = 32
    rope: int = 16
    v_dim: int = 32
    dense_inter: int = 256
    experts: int = 16
    top_k: int = 4
    expert_inter: int = 32
    latent: int = 64
    shared: int = 2
    situ_beta: float = 4.0
    situ_linear_beta: float = 25.0
    eps: float = 1e-5
    context: int = 2048
    mla_layers: tuple[int, ...] = (3, 7, 11)
    """As in the released model, one layer in four."""

    @property
    def vocab(self) -> int:
        return self.base_vocab + 256

    @property
    def kda_width(self) -> int:
        return self.kda_heads * self.kda_dim

    def is_mla(self, layer: int) -> bool:
        return layer in self.mla_layers

    def is_moe(self, layer: int) -> bool:
        return layer >= 1


SHAPE = Shape()


def config_json(shape: Shape = SHAPE) -> dict[str, Any]:
    """The nested form of the released `config.json`, with the fields that shape the text model."""
    numbers = range(1, shape.layers + 1)
    base = shape.base_vocab
    ids = {"bos_token_id": base, "eos_token_id": base + 2, "pad_token_id": base + 255}
    weights = {
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "group_size": 32,
        "num_bits": 4,
        "observer": "minmax",
        "observer_kwargs": {},
        "scale_dtype": "torch.uint8",
        "strategy": "group",
        "symmetric": True,
        "type": "float",
        "zp_dtype": None,
    }
    text = {
        "activation_situ_beta": shape.situ_beta,
        "activation_situ_linear_beta": shape.situ_linear_beta,
        "architectures": ["KimiLinearForCausalLM"],
        "attn_res_block_size": shape.block,
        **ids,
        "dtype": "bfloat16",
        "first_k_dense_replace": 1,
        "hidden_act": "situ",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.dense_inter,
        "kv_lora_rank": shape.kv_rank,
        "latent_moe_use_norm": True,
        "linear_attn_config": {
            "full_attn_layers": [n for n in numbers if shape.is_mla(n - 1)],
            "gate_lower_bound": shape.lower_bound,
            "head_dim": shape.kda_dim,
            "kda_layers": [n for n in numbers if not shape.is_mla(n - 1)],
            "num_heads": shape.kda_heads,
            "short_conv_kernel_size": shape.conv,
            "use_full_rank_gate": True,
        },
        "max_position_embeddings": shape.context,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "model_type": "kimi_linear",
        "moe_intermediate_size": shape.expert_inter,
        "moe_layer_freq": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "num_attention_heads": shape.mla_heads,
        "num_expert_group": 1,
        "num_experts": shape.experts,
        "num_experts_per_token": shape.top_k,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.mla_heads,
        "num_nextn_predict_layers": 0,
        "num_shared_experts": shape.shared,
        "q_lora_rank": shape.q_rank,
        "qk_nope_head_dim": shape.nope,
        "qk_rope_head_dim": shape.rope,
        "quantization_config": {
            "config_groups": {
                "group_0": {
                    "format": "mxfp4-pack-quantized",
                    "input_activations": None,
                    "output_activations": None,
                    "targets": ["Linear"],
                    "weights": weights,
                }
            },
            "format": "mxfp4-pack-quantized",
            "global_compression_ratio": None,
            "ignore": [
                "re:.*self_attn.*",
                "re:.*shared_experts.*",
                "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
                "re:.*lm_head.*",
            ],
            "kv_cache_scheme": None,
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
        },
        "rms_norm_eps": shape.eps,
        "routed_expert_hidden_size": shape.latent,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "use_grouped_topk": True,
        "v_head_dim": shape.v_dim,
        "vocab_size": shape.vocab,
    }
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        **ids,
        "dtype": "bfloat16",
        "model_type": "kimi_k3",
        "text_config": text,
        "tie_word_embeddings": False,
    }
