"""The order in which a pass uses the dense matrices: the tape's score.

Knows: which matrices a layer multiplies by, in what order, and where their rows lie, in shards or in a pack.
Does not know: how they are read or multiplied.

Two rules choose the order. The router comes as early as it can, so that the reads of the chosen experts
start while the other matrices of the layer are computed. Among matrices that do not depend on each
other the order is the one in which they lie in the released shards, so that neighbours on the tape are
neighbours on the disk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kimistream.checkpoint.config import ModelConfig
from kimistream.checkpoint.names import head_name, layer_tensor
from kimistream.checkpoint.pack import Pack
from kimistream.checkpoint.pack_format import BAND_ROWS, PackedRun, refuse
from kimistream.checkpoint.table import Checkpoint, TensorRef
from kimistream.kernels.bands import BandForm
from kimistream.kernels.formats import WeightFormat
from kimistream.stream.blocks import TapeItem


@dataclass(frozen=True, slots=True)
class Run:
    """Rows `row0 : row0 + rows` of a matrix, one item of the tape: `index` is its place there.

    form: of its bands, when it lies in a pack; `first_band` is then the number of the first in the file.
    """

    index: int
    row0: int
    rows: int
    form: BandForm | None = None
    first_band: int = 0


@dataclass(frozen=True, slots=True)
class Matrix:
    """One dense matrix `[rows, cols]`, y = W x, in the order of its rows; `format` as in the checkpoint."""

    name: str
    format: WeightFormat
    rows: int
    cols: int
    runs: tuple[Run, ...]

    @property
    def index(self) -> int:
        """The place of its first run on the tape."""
        return self.runs[0].index


@dataclass(frozen=True, slots=True)
class Score:
    """The tape: its items in the order of use, and the matrices by layer and role."""

    items: tuple[TapeItem, ...]
    layers: tuple[dict[str, Matrix], ...]
    head: Matrix

    def matrices(self) -> list[Matrix]:
        """All of them in the order of the tape."""
        return [*(matrix for layer in self.layers for matrix in layer.values()), self.head]


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


def granule_of(config: ModelConfig, role: str) -> int:
    """Rows of a matrix that belong together: a head's key rows and value rows are used at once."""
    return config.mla.nope_head_dim + config.mla.v_head_dim if role == "kv_b_proj" else 1


def tape_score(checkpoint: Checkpoint, pack: Pack | None = None) -> Score:
    """Lay out the tape of a checkpoint: every layer's matrices, then the output head.

    With a pack its bands take the place of the rows; its file has the number behind the checkpoint's.
    Raises PackError for a pack that lacks a matrix.
    """
    config = checkpoint.config
    items: list[TapeItem] = []
    layers: list[dict[str, Matrix]] = []

    def add(name: str, granule: int = 1) -> Matrix:
        ref = checkpoint.dense(name)
        rows, cols = ref.shape
        index = len(items)
        if pack is None:
            items.append(TapeItem(name, ref.file, ref.offset, rows, ref.nbytes // rows, granule))
            return Matrix(name, ref.format, rows, cols, (Run(index, 0, rows),))
        packed, band = pack.matrix(name)
        runs: list[Run] = []
        for run in packed.runs:
            form = band_form(pack, ref, run)
            file, together = len(checkpoint.files), math.lcm(granule, BAND_ROWS) // BAND_ROWS
            items.append(TapeItem(name, file, run.offset, run.bands, run.band_bytes, together, 1))
            runs.append(Run(index + len(runs), run.row0, run.rows, form, band))
            band += run.bands
        return Matrix(name, ref.format, rows, cols, tuple(runs))

    for layer in range(config.num_layers):
        matrices = {}
        for role in layer_roles(config, layer):
            matrices[role] = add(layer_tensor(config, layer, role), granule_of(config, role))
        layers.append(matrices)
    head = add(head_name(config))
    return Score(tuple(items), tuple(layers), head)


def band_form(pack: Pack, ref: TensorRef, run: PackedRun) -> BandForm:
    """The form of a run's bands. Raises PackError when it is not one that this version reads."""
    packed = run.form == WeightFormat.BF12.name and ref.format == WeightFormat.BF16 and run.room >= 0
    form = BandForm(WeightFormat.BF12 if packed else ref.format, ref.shape[1], run.room)
    plain = run.form == ref.format.name and run.room == 0
    if not (packed or plain) or form.nbytes != run.band_bytes:
        what = f"{run.form}, room for {run.room}, {run.band_bytes} bytes a band"
        refuse(pack.path, f"stores {ref.name} in a form that is not understood: {what}")
    return form
