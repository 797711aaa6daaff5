"""Kimi K3 on paper: the released checkpoint's table without its files, for plans before a download.

Knows: the released sizes and layout (checkpoint.released), and about how large a pack would be.
Does not know: any weight; nothing can be read from it.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np

from kimistream.checkpoint.config import ModelConfig, parse_config
from kimistream.checkpoint.experts import GROUP, ExpertTable
from kimistream.checkpoint.formats import WeightFormat
from kimistream.checkpoint.names import Need, expert_shapes, final_tensors, layer_tensors
from kimistream.checkpoint.pack import Pack
from kimistream.checkpoint.pack_format import (
    HEADER_BYTES,
    Directory,
    PackedMatrix,
    PackedRun,
    PackedVector,
    PackHeader,
    padded,
)
from kimistream.checkpoint.released import BYTES, FLOAT32_ROLES, Sizes, config_tree
from kimistream.checkpoint.table import Checkpoint, ShardFile, TensorRef
from kimistream.kernels.bands import BandForm
from kimistream.model.order import tape_score
from kimistream.model.vectors import vector_names

RELEASED_BYTES = 1_560_936_091_448
"""All 96 shards as published (checkpoint.released gives the same sum)."""
VISION_BYTES = 904_000_000
"""The two shards of the image tower, about; `pull --only text` leaves them out."""
_HEADER = 800_000
"""A header's size, about; the tensors begin behind it on no particular bound, as in the real files."""

_ESCAPES = 64
"""Room of a band of trained weights for numbers that its table lacks, about."""


def paper_checkpoint(sizes: Sizes | None = None) -> Checkpoint:
    """A table with the released shapes and adjacency. Only plans and sizes may be taken from it."""
    sizes = sizes or Sizes()
    config = parse_config(msgspec.json.encode(config_tree(sizes)), "the released config.json")
    dense: dict[str, TensorRef] = {}
    experts: dict[int, ExpertTable] = {}
    files = []
    for layer in range(config.num_layers):
        end = _lay_out(layer_tensors(config, layer), layer, sizes, dense)
        if config.ffn_kinds[layer] == "moe":
            experts[layer] = _experts(config, layer, end)
            end = int(experts[layer].offsets[-1, 0]) + experts[layer].run_bytes
        files.append(ShardFile(Path(f"layer {layer}"), end))
    end = _lay_out(final_tensors(config), config.num_layers, sizes, dense)
    files.append(ShardFile(Path("embedding, head, norms"), end))
    return Checkpoint(Path("the released Kimi K3"), config, tuple(files), dense, experts, b"", ())


def paper_pack(table: Checkpoint) -> Pack:
    """What a pack of a checkpoint would be like, without making it. Only plans and sizes may be taken from it."""
    at, matrices, vectors = HEADER_BYTES, [], []
    for name in vector_names(table.config):
        ref = table.dense(name)
        vectors.append(PackedVector(name, ref.dtype, ref.shape, at, ref.nbytes, ""))
        at += padded(ref.nbytes)
    for matrix in tape_score(table).matrices():
        forms = [BandForm(matrix.format, matrix.cols)]
        if matrix.format == WeightFormat.BF16:
            forms.append(BandForm(WeightFormat.BF12, matrix.cols, _ESCAPES))
        form = min(forms, key=lambda form: form.nbytes)
        run = PackedRun(0, matrix.rows, form.fmt.name, form.escape_room, form.nbytes, at)
        dtype = table.dense(matrix.name).dtype
        matrices.append(PackedMatrix(matrix.name, dtype, matrix.rows, matrix.cols, "", (run,)))
        at += run.nbytes
    return Pack(
        Path("a pack"), PackHeader(b"", 0, at, at, 0, b""), Directory("", (), tuple(vectors), tuple(matrices))
    )


def _lay_out(needs: dict[str, Need], file: int, sizes: Sizes, dense: dict[str, TensorRef]) -> int:
    """Place tensors one behind the other in the released order; returns where they end."""
    tensors = []
    for role, need in needs.items():
        dtype = "F32" if role in FLOAT32_ROLES else "BF16"
        shape = (sizes.a_log_entries,) if role == "A_log" else need.shape
        tensors.append((-BYTES[dtype], need.name, dtype, shape))
    at = _HEADER
    for _, name, dtype, shape in sorted(tensors):
        nbytes = math.prod(shape) * BYTES[dtype]
        dense[name] = TensorRef(name, file, at, nbytes, dtype, shape)
        at += nbytes
    return at


def _experts(config: ModelConfig, file: int, start: int) -> ExpertTable:
    parts: list[int] = []
    for rows, cols in expert_shapes(config):
        parts += [rows * (cols // 2), rows * (cols // GROUP)]
    a, b, c, d, e, f = parts
    begins = np.cumsum([0, *parts[:-1]])
    run = sum(parts)
    offsets = start + np.arange(config.moe.num_experts)[:, None] * run + begins[None, :]
    return ExpertTable(
        WeightFormat.MXFP4,
        offsets.astype(np.int64),
        np.full(offsets.shape, file, np.int16),
        (a, b, c, d, e, f),
        np.ones(len(offsets), np.bool_),
    )
