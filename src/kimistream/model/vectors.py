"""The small tensors that every pass uses: norms, convolutions, biases. Always resident, float32.

Knows: which vectors each layer has, and their shapes in memory.
Does not know: the formulas they stand in.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.config import ModelConfig
from kimistream.checkpoint.names import final_tensor, layer_tensor
from kimistream.checkpoint.pack import Pack
from kimistream.checkpoint.table import Checkpoint

Floats = npt.NDArray[np.float32]


def layer_vectors(config: ModelConfig, layer: int) -> dict[str, int]:
    """Role -> number of float32 values, for the vectors of one layer."""
    hidden = config.hidden_size
    sizes = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.attn_res_block_size:
        for role in ("self_attention_res_norm", "self_attention_res_proj", "mlp_res_norm", "mlp_res_proj"):
            sizes[role] = hidden
    if config.layer_kinds[layer] == "kda":
        kda = config.kda
        channels = kda.num_heads * kda.head_dim
        sizes |= {"A_log": kda.num_heads, "dt_bias": channels, "o_norm": kda.head_dim}
        sizes |= dict.fromkeys(("q_conv1d", "k_conv1d", "v_conv1d"), channels * kda.conv_kernel)
    else:
        sizes["kv_a_layernorm"] = config.mla.kv_lora_rank
        if config.mla.q_lora_rank is not None:
            sizes["q_a_layernorm"] = config.mla.q_lora_rank
    if config.ffn_kinds[layer] == "moe":
        sizes["e_score_correction_bias"] = config.moe.num_experts
        if config.moe.latent_size is not None and config.moe.latent_norm:
            sizes["routed_expert_norm"] = config.moe.latent_size
    return sizes


def final_vectors(config: ModelConfig) -> dict[str, int]:
    """Role -> number of float32 values, for the vectors after the last layer."""
    sizes = {"norm": config.hidden_size}
    if config.attn_res_block_size:
        sizes |= {"output_attn_res_norm": config.hidden_size, "output_attn_res_proj": config.hidden_size}
    return sizes


def vectors_bytes(config: ModelConfig) -> int:
    """Bytes of all resident vectors."""
    layers = (layer_vectors(config, i) for i in range(config.num_layers))
    return 4 * (sum(sum(sizes.values()) for sizes in layers) + sum(final_vectors(config).values()))


def vector_names(config: ModelConfig) -> list[str]:
    """The tensors that are vectors, layer by layer, then the final ones."""
    names = [
        layer_tensor(config, layer, role)
        for layer in range(config.num_layers)
        for role in layer_vectors(config, layer)
    ]
    return names + [final_tensor(config, role) for role in final_vectors(config)]


class Vectors:
    """All vectors of a checkpoint; `layers[i][role]` and `final[role]` are float32 arrays.

    source: a pack of the checkpoint, where there is one, else the checkpoint. Raises NumberError naming the
    tensor for a NaN or an infinity, TensorError or PackError for one that is missing or damaged.
    """

    def __init__(self, config: ModelConfig, source: Checkpoint | Pack) -> None:
        self.layers: list[dict[str, Floats]] = []
        for layer in range(config.num_layers):
            sizes = layer_vectors(config, layer)
            self.layers.append(
                {r: _load(source, layer_tensor(config, layer, r), n) for r, n in sizes.items()}
            )
        self.final = {r: _load(source, final_tensor(config, r), n) for r, n in final_vectors(config).items()}

    def close(self) -> None:
        """Give the memory back, whoever still holds this."""
        self.layers.clear()
        self.final.clear()


def _load(source: Checkpoint | Pack, name: str, count: int) -> Floats:
    # the released A_log carries padding behind its heads (ARCHITECTURE section 2)
    flat = source.read_vector(name).reshape(-1)[:count]
    return np.ascontiguousarray(flat, np.float32)
