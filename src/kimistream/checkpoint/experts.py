"""The routed experts of a checkpoint as arrays: where each one's matrices lie.

Knows: an expert's tensors, their two forms (MXFP4 codes with scales; plain bf16, float32 or float16),
their shapes, and whether an expert is one run of bytes.
Does not know: which experts a token uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.config import ModelConfig
from kimistream.checkpoint.formats import FLOATS, WeightFormat
from kimistream.checkpoint.header import Header
from kimistream.checkpoint.index import Index
from kimistream.checkpoint.names import EXPERT_PARTS, expert_name, expert_shapes, experts_prefix
from kimistream.errors import ConfigError, ShardError, TensorError

GROUP = 32
"""Columns that share one MXFP4 scale (ARCHITECTURE section 8)."""
_FORMS = tuple(
    (part, suffix) for part in EXPERT_PARTS for suffix in ("weight", "weight_packed", "weight_scale")
)
_ENDS = {end: place for place, end in enumerate(_FORMS)}
_COLUMNS = np.array([2 * EXPERT_PARTS.index(part) + (suffix == "weight_scale") for part, suffix in _FORMS])
_COLUMN_SUFFIX = ("weight_packed", "weight_scale")


class HasPath(Protocol):
    @property
    def path(self) -> Path: ...


@dataclass(frozen=True, slots=True)
class ExpertTable:
    """The experts of one layer. Columns: w1, w1 scale, w2, w2 scale, w3, w3 scale.

    In the plain forms a scale has 0 bytes and its offset is the end of its matrix, so the rule for a run
    is the same for all forms.
    """

    format: WeightFormat
    offsets: npt.NDArray[np.int64]
    """`[E, 6]`, in bytes from the start of the file."""
    files: npt.NDArray[np.int16]
    """`[E, 6]`, file numbers of the checkpoint."""
    sizes: tuple[int, int, int, int, int, int]
    """Bytes of each column, the same for all experts."""
    contiguous: npt.NDArray[np.bool_]
    """`[E]`: the six lie in one file, back to back, in the order of the columns: one read does."""

    @property
    def file(self) -> npt.NDArray[np.int16]:
        """`[E]`: the file of the first column, of the whole expert where it is contiguous."""
        return self.files[:, 0]

    @property
    def run_bytes(self) -> int:
        """Bytes of one expert."""
        return sum(self.sizes)


class _Layer:
    """What has been seen of one layer so far; offset -1 means not yet."""

    def __init__(self, experts: int) -> None:
        self.form = ""
        self.example = ""
        self.offsets = np.full((experts, 6), -1, np.int64)
        self.files = np.full((experts, 6), -1, np.int16)


class ExpertCollector:
    """Takes shard after shard, then gives the tables."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        # A name's code: layer, expert, column and form in one number, out of three dictionaries.
        per_layer = config.moe.num_experts * len(_FORMS)
        self._starts = {experts_prefix(config, layer): layer * per_layer for layer in config.moe_layers}
        self._middles = {str(expert): expert * len(_FORMS) for expert in range(config.moe.num_experts)}
        self._per_layer = per_layer
        self._layers: dict[int, _Layer] = {}

    def add(self, header: Header, number: int, files: Sequence[HasPath]) -> list[int]:
        """Take the experts of a shard (file `number`); returns the indices of its other tensors.

        Raises TensorError for a wrong shape or type, ShardError for a tensor that another shard has too.
        """
        codes = self._codes(header.names)
        layers = codes // self._per_layer  # -1 for what is not an expert
        experts = codes % self._per_layer // len(_FORMS)
        forms = codes % len(_FORMS)
        columns = _COLUMNS[forms]
        for layer in np.unique(layers[codes >= 0]).tolist():
            mine = np.flatnonzero(layers == layer)
            # The check is of kinds of tensors, with one example each, not of every tensor.
            _, examples = np.unique(header.kind[mine] * len(_FORMS) + forms[mine], return_index=True)
            for i in mine[np.sort(examples)].tolist():
                self._check(header, layer, int(columns[i]), _FORMS[forms[i]][1], i)
            self._store(self._layers[layer], experts[mine] * 6 + columns[mine], header, mine, number, files)
        return [int(i) for i in np.flatnonzero(codes < 0)]

    def _codes(self, names: list[str]) -> npt.NDArray[np.int64]:
        """The code of each name, -1 for those that are no expert's."""
        starts, middles, ends = self._starts, self._middles, _ENDS
        codes = []
        for name in names:
            try:
                start, expert, part, suffix = name.rsplit(".", 3)
                codes.append(starts[start] + middles[expert] + ends[part, suffix])
            except (KeyError, ValueError):
                codes.append(-1)
        return np.array(codes, np.int64)

    def _check(self, header: Header, layer: int, column: int, suffix: str, i: int) -> None:
        """One (layer, column, dtype, shape): is it what the config asks for, in one form per layer?"""
        name = header.names[i]
        dtype, stored_shape = header.kinds[header.kind[i]]
        rows, cols = expert_shapes(self._config)[column // 2]
        if suffix == "weight":
            accepted, shape, form = tuple(FLOATS), (rows, cols), dtype
        else:
            if cols % GROUP:
                raise ConfigError(
                    f"{EXPERT_PARTS[column // 2]} of the experts has {cols} columns by config.json; "
                    f"understood for MXFP4: a multiple of {GROUP}",
                    "Use the config.json that was released with these weights.",
                )
            shape = (rows, cols // GROUP) if suffix == "weight_scale" else (rows, cols // 2)
            accepted, form = ("U8",), WeightFormat.MXFP4.name
        if dtype not in accepted:
            raise TensorError(
                f"tensor {name} is stored as {dtype}; accepted: {', '.join(accepted)} (in {header.path})",
                "Use the checkpoint in the form it was released in.",
            )
        if stored_shape != shape:
            raise TensorError(
                f"tensor {name} has the shape {list(stored_shape)}, config.json asks for {list(shape)} "
                f"(in {header.path})",
                "Use the config.json that was released with these weights.",
            )
        if layer not in self._layers:
            self._layers[layer] = _Layer(self._config.moe.num_experts)
        known = self._layers[layer]
        if not known.form:
            known.form, known.example = form, name
        elif known.form != form:
            raise TensorError(
                f"the experts of layer {layer} are stored in two forms: {known.example} as {known.form}, "
                f"{name} as {form}",
                "Use the checkpoint in the form it was released in.",
            )

    def _store(
        self,
        layer: _Layer,
        where: npt.NDArray[np.int64],
        header: Header,
        indices: npt.NDArray[np.int64],
        number: int,
        files: Sequence[HasPath],
    ) -> None:
        flat_offsets, flat_files = layer.offsets.reshape(-1), layer.files.reshape(-1)
        taken = np.flatnonzero(flat_offsets[where] >= 0)
        if len(taken):
            first = int(taken[0])
            other = files[int(flat_files[where[first]])].path
            raise ShardError(
                f"tensor {header.names[indices[first]]} is in {other} and in {header.path}",
                "Remove the file that does not belong to the checkpoint.",
            )
        flat_offsets[where] = header.offsets[indices]
        flat_files[where] = number

    def finish(self, files: Sequence[HasPath], index: Index | None) -> dict[int, ExpertTable]:
        """The table of each MoE layer. Raises TensorError naming the first tensor that is missing."""
        return {layer: self._finish(layer, files, index) for layer in self._config.moe_layers}

    def _finish(self, layer: int, files: Sequence[HasPath], index: Index | None) -> ExpertTable:
        known = self._layers.get(layer) or _Layer(self._config.moe.num_experts)
        packed = known.form in ("", WeightFormat.MXFP4.name)
        format_ = WeightFormat.MXFP4 if packed else FLOATS[known.form]
        columns = range(6) if packed else range(0, 6, 2)
        missing = np.argwhere(known.offsets[:, columns] < 0)
        if len(missing):
            expert, column = int(missing[0][0]), columns[int(missing[0][1])]
            suffix = _COLUMN_SUFFIX[column % 2] if packed else "weight"
            name = expert_name(self._config, layer, expert, EXPERT_PARTS[column // 2], suffix)
            raise TensorError(
                f"expert {expert} of layer {layer} is not whole: tensor {name} is in none of the "
                f"{len(files)} shards ({len(missing)} tensors of this layer's experts are missing)",
                f"Its config.json and its shards do not belong together: `kimistream verify {files[0].path.parent}` "
                "tells what is missing.",
            )
        sizes = self._sizes(format_)
        if not packed:
            for column in (1, 3, 5):
                known.offsets[:, column] = known.offsets[:, column - 1] + sizes[column - 1]
                known.files[:, column] = known.files[:, column - 1]
        ends = known.offsets + np.array(sizes)
        contiguous = (ends[:, :-1] == known.offsets[:, 1:]).all(axis=1)
        contiguous &= (known.files == known.files[:, :1]).all(axis=1)
        return ExpertTable(format_, known.offsets, known.files, sizes, contiguous)

    def _sizes(self, format_: WeightFormat) -> tuple[int, int, int, int, int, int]:
        sizes: list[int] = []
        for rows, cols in expert_shapes(self._config):
            if format_ is WeightFormat.MXFP4:
                sizes += [rows * (cols // 2), rows * (cols // GROUP)]
            else:
                sizes += [rows * cols * (4 if format_ is WeightFormat.F32 else 2), 0]
        a, b, c, d, e, f = sizes
        return a, b, c, d, e, f
