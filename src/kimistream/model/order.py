"""The order in which a pass uses the dense matrices: the tape's score.

Knows: which matrices a layer multiplies by, and in what order.
Does not know: how they are read or multiplied.

Two rules choose the order. The router comes as early as it can, so that the reads of the chosen experts
start while the other matrices of the layer are computed. Among matrices that do not depend on each
other the order is the one in which they lie in the released shards, so that neighbours on the tape are
neighbours on the disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from kimistream.checkpoint.config import ModelConfig
from kimistream.checkpoint.names import head_name, layer_tensor
from kimistream.checkpoint.table import Checkpoint
from kimistream.kernels.formats import WeightFormat
from kimistream.stream.blocks import TapeItem


@dataclass(frozen=True, slots=True)
class Matrix:
    """One dense matrix `[rows, cols]`, y = W x; `index` is its place on the tape."""

    index: int
    name: str
    format: WeightFormat
    rows: int
    cols: int


@dataclass(frozen=True, slots=True)
class Score:
    """The tape: its items in the order of use, and the matrices by layer and role."""

    items: tuple[TapeItem, ...]
    layers: tuple[dict[str, Matrix], ...]
    head: Matrix


def layer_roles(config: ModelConfig, layer: int) -> list[str]:
    """The matrix roles of one layer in the order of use."""
    if config.layer_kinds[layer] == "kda":
        gate = ["g_proj"] if config.kda.full_rank_gate else ["g_a_proj", "g_b_proj"]
        roles = ["b_proj", "f_a_proj", "f_b_proj", *gate, "k_proj", "q_proj", "v_proj", "o_proj"]
    else:
        gate = ["g_proj"] if config.mla.output_gate else []
        query = ["q_proj"] if config.mla.q_lora_rank is None else ["q_a_proj", "q_b_proj"]
        roles = [*gate, "kv_a_proj_with_mqa", *query, "kv_b_proj", "o_proj"]
    if config.ffn_kinds[layer] == "dense":
        return [*roles, "gate_proj", "up_proj", "down_proj"]
    latent = config.moe.latent_size is not None
    roles.append("router")
    if latent:
        roles.append("routed_expert_down_proj")
    if config.moe.num_shared_experts:
        roles += ["shared_gate_proj", "shared_up_proj", "shared_down_proj"]
    if latent:
        roles.append("routed_expert_up_proj")
    return roles


def tape_score(checkpoint: Checkpoint) -> Score:
    """Lay out the tape of a checkpoint: every layer's matrices, then the output head."""
    config = checkpoint.config
    items: list[TapeItem] = []
    layers: list[dict[str, Matrix]] = []

    def add(name: str, granule: int = 1) -> Matrix:
        ref = checkpoint.dense(name)
        rows, cols = ref.shape
        index = len(items)
        items.append(TapeItem(name, ref.file, ref.offset, rows, ref.nbytes // rows, granule))
        return Matrix(index, name, ref.format, rows, cols)

    for layer in range(config.num_layers):
        matrices = {}
        for role in layer_roles(config, layer):
            # a head's key rows and value rows are used together, so a block holds whole heads
            granule = config.mla.nope_head_dim + config.mla.v_head_dim if role == "kv_b_proj" else 1
            matrices[role] = add(layer_tensor(config, layer, role), granule)
        layers.append(matrices)
    head = add(head_name(config))
    return Score(tuple(items), tuple(layers), head)
