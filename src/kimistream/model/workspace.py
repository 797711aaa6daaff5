"""The activations of one pass, carved from one piece of memory whose size is known beforehand.

Knows: which arrays a pass needs for a number of rows, and which of them never live at the same time.
Does not know: what is computed in them.

The attention of a layer and its feed-forward part are never alive together, nor are the parts of
different layers: their arrays share one region, as large as the largest of them.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.config import ModelConfig
from kimistream.kernels.experts import scratch_bytes
from kimistream.kernels.matrix import padded

Floats = npt.NDArray[np.float32]
Shape = tuple[int, ...]
_ALIGN = 64


def _kda(config: ModelConfig, rows: int) -> dict[str, Shape]:
    kda = config.kda
    channels = kda.num_heads * kda.head_dim
    wide = (rows, channels)
    return {
        "beta": (rows, kda.num_heads),
        "low": (rows, kda.head_dim),
        "low_split": (rows, padded(kda.head_dim)),
        "decay": wide,
        "gate": wide,
        "raw": wide,
        "k": wide,
        "q": wide,
        "v": wide,
        "split": (rows, padded(channels)),
    }


def _mla(config: ModelConfig, rows: int) -> dict[str, Shape]:
    mla = config.mla
    query = mla.num_heads * (mla.nope_head_dim + mla.rope_head_dim)
    value = mla.num_heads * mla.v_head_dim
    lora = mla.q_lora_rank or 0
    return {
        "gate": (rows, value),
        "latent": (rows, mla.kv_lora_rank + mla.rope_head_dim),
        "q_low": (rows, lora),
        "q_normed": (rows, lora),
        "q_split": (rows, padded(lora)),
        "q": (rows, query),
        "out": (rows, value),
        "split": (rows, padded(value)),
    }


def _mlp(width: int, rows: int) -> dict[str, Shape]:
    return {"mlp_gate": (rows, width), "mlp_up": (rows, width), "mlp_split": (rows, padded(width))}


def _moe(config: ModelConfig, rows: int) -> dict[str, Shape]:
    moe = config.moe
    width = moe.latent_size or config.hidden_size
    scratch = scratch_bytes(rows, moe.intermediate_size, width)
    return {
        "router": (rows, moe.num_experts),
        "expert_weights": (rows, moe.top_k),
        "latent": (rows, width),
        "latent_split": (rows, padded(width)),
        "expert_out": (rows * moe.top_k, width),
        "expert_scratch": (math.ceil(scratch / 4),),
        "mixture": (rows, width),
        "mixture_normed": (rows, width),
        "mixture_split": (rows, padded(width)),
        "up": (rows, config.hidden_size),
        **_mlp(moe.intermediate_size * moe.num_shared_experts, rows),
    }


def _stream(config: ModelConfig, rows: int) -> dict[str, Shape]:
    hidden = config.hidden_size
    blocks = residual_blocks(config)
    return {
        "stack": (blocks, rows, hidden),
        "s": (rows, hidden),
        "h": (rows, hidden),
        "normed": (rows, hidden),
        "x": (rows, padded(hidden)),
        "sub": (rows, hidden),
    }


def residual_blocks(config: ModelConfig) -> int:
    """How many snapshots the attention-residual stack grows to (ARCHITECTURE section 4); 0 without."""
    size = config.attn_res_block_size
    return math.ceil(config.num_layers / size) if size else 0


def _phases(config: ModelConfig, rows: int) -> list[dict[str, Shape]]:
    phases = []
    if "kda" in config.layer_kinds:
        phases.append(_kda(config, rows))
    if "mla" in config.layer_kinds:
        phases.append(_mla(config, rows))
    if "dense" in config.ffn_kinds:
        phases.append(_mlp(config.dense_intermediate_size, rows))
    if "moe" in config.ffn_kinds:
        phases.append(_moe(config, rows))
    return phases


def _size(shapes: dict[str, Shape]) -> int:
    return sum(-(-4 * math.prod(shape) // _ALIGN) * _ALIGN for shape in shapes.values())


def workspace_bytes(config: ModelConfig, rows: int) -> int:
    """Bytes a pass of at most `rows` rows needs for its activations (the logits are apart)."""
    return _size(_stream(config, rows)) + max(_size(phase) for phase in _phases(config, rows)) + _ALIGN


class Workspace:
    """Named float32 arrays for passes of up to `max_rows` rows, in one allocation."""

    def __init__(self, config: ModelConfig, max_rows: int) -> None:
        self._config = config
        self.max_rows = max_rows
        self._memory = np.zeros(workspace_bytes(config, max_rows), np.uint8)
        self._rows = 0
        self._arrays: dict[tuple[str, str], Floats] = {}

    def resize(self, rows: int) -> None:
        """Lay the arrays out for a pass of exactly `rows` rows; the old views are void."""
        if rows == self._rows:
            return
        self._rows, self._arrays = rows, {}
        config = self._config
        base = -self._memory.ctypes.data % _ALIGN
        start = self._carve("stream", _stream(config, rows), base)
        if "kda" in config.layer_kinds:
            self._carve("kda", _kda(config, rows), start)
        if "mla" in config.layer_kinds:
            self._carve("mla", _mla(config, rows), start)
        if "dense" in config.ffn_kinds:
            self._carve("mlp", _mlp(config.dense_intermediate_size, rows), start)
        if "moe" in config.ffn_kinds:
            self._carve("moe", _moe(config, rows), start)

    def _carve(self, phase: str, shapes: dict[str, Shape], offset: int) -> int:
        for name, shape in shapes.items():
            nbytes = 4 * math.prod(shape)
            flat = self._memory[offset : offset + nbytes].view(np.float32)
            self._arrays[phase, name] = flat.reshape(shape)
            offset += -(-nbytes // _ALIGN) * _ALIGN
        return offset

    def close(self) -> None:
        """Give the memory back, whoever still holds this."""
        self._memory, self._arrays, self._rows = np.zeros(0, np.uint8), {}, 0

    def __call__(self, phase: str, name: str) -> Floats:
        """The array `name` of a phase (stream, kda, mla, mlp, moe) for the current rows."""
        return self._arrays[phase, name]
