"""Random contents for synthetic checkpoints, at scales at which activations neither vanish nor explode.

Knows: the scale of each role, and a generator whose bytes depend on the seed and the tensor's name alone,
on every machine and with every version of numpy (integers only, then one exact scaling).
Does not know: where the bytes go.
"""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.released import Stored

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_STEP, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_E2M1_RMS = math.sqrt(68.5 / 8)
"""Root mean square of the sixteen E2M1 values 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives."""

GAINS = {
    "q_proj": 1.2, "k_proj": 1.2, "v_proj": 1.2, "g_proj": 1.5, "b_proj": 1.5, "o_proj": 0.8,
    "f_a_proj": 1.0, "f_b_proj": 1.0, "q_b_proj": 1.4, "kv_b_proj": 1.3, "router": 1.6,
    "gate_proj": 1.5, "up_proj": 1.5, "down_proj": 0.7, "shared_gate_proj": 1.5, "shared_up_proj": 1.5,
    "shared_down_proj": 0.7, "routed_expert_up_proj": 0.7, "lm_head": 2.5,
    "w1": 1.5, "w2": 1.0, "w3": 1.5,
}  # fmt: skip
"""A matrix of gain g turns a row of root mean square 1 into one of about g."""


class Scale(NamedTuple):
    """Mean and standard deviation of a tensor's numbers."""

    mean: float
    std: float


def scale_of(tensor: Stored) -> Scale:
    """The scale of a tensor that holds numbers (not MXFP4 bytes)."""
    role = tensor.role
    if role == "A_log":
        return Scale(0.0, 0.15)
    if role == "dt_bias":
        return Scale(-2.4, 1.7)
    if role == "e_score_correction_bias":
        return Scale(0.0, 0.05)
    if role == "embed_tokens":
        return Scale(0.0, 1.0)
    if role.endswith("conv1d"):
        return Scale(0.0, 0.5)
    if len(tensor.shape) == 1:
        return Scale(1.0, 0.15)  # the norms
    return Scale(0.0, GAINS.get(role, 1.0) / math.sqrt(math.prod(tensor.shape[1:])))


def exponent_of(tensor: Stored) -> int:
    """The middle one of the three scale bytes in use for a `weight_scale` tensor."""
    columns = tensor.shape[-1] * 32
    # the three neighbouring powers of two have a root mean square of 1.32 times the middle one
    wanted = GAINS[tensor.role[:2]] / math.sqrt(columns) / _E2M1_RMS / math.sqrt(5.25 / 3)
    return 127 + round(math.log2(wanted))


def key_of(seed: int, name: str) -> int:
    """64 bits out of a seed and a name."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little")


def words(key: int, count: int) -> npt.NDArray[np.uint64]:
    """`count` random 64-bit words (splitmix64 from the state `key`)."""
    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_STEP) + np.uint64(key)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_MIX1)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_MIX2)
    return state ^ (state >> np.uint64(31))


def normals(key: int, count: int) -> Floats:
    """`count` numbers of mean 0 and deviation 1, nearly normal: sums of four 16-bit integers, scaled."""
    parts = words(key, count).astype("<u8").view("<u2").reshape(count, 4)
    sums = parts.sum(axis=1, dtype=np.int32) - 2 * 65535
    scaled: Floats = sums.astype(np.float32) * np.float32(1 / (math.sqrt(4 / 12) * 65536))
    return scaled


def bf16(values: Floats) -> npt.NDArray[np.uint16]:
    """Round finite float32 to the nearest bf16, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(
        "<u2"
    )


def numbers(key: int, scale: Scale, dtype: str, count: int) -> Bytes:
    """`count` numbers of that scale, stored as `dtype` (F32 or BF16)."""
    values = normals(key, count) * np.float32(scale.std) + np.float32(scale.mean)
    stored = bf16(values) if dtype == "BF16" else values.astype("<f4")
    return stored.view(np.uint8)


def codes(key: int, count: int) -> Bytes:
    """`count` bytes of two random E2M1 codes each."""
    return words(key, -(-count // 8)).astype("<u8").view(np.uint8)[:count]


def scales(key: int, middle: int, count: int) -> Bytes:
    """`count` scale bytes: `middle` and its two neighbours."""
    return (codes(key, count) % 3 + np.uint8(middle - 1)).astype(np.uint8)


def content(seed: int, tensor: Stored, heads: int) -> Bytes:
    """All bytes of one tensor; entries of `A_log` beyond `heads` are the released zero padding."""
    key = key_of(seed, tensor.name)
    count = math.prod(tensor.shape)
    if tensor.role.endswith("weight_packed"):
        return codes(key, count)
    if tensor.role.endswith("weight_scale"):
        return scales(key, exponent_of(tensor), count)
    data = numbers(key, scale_of(tensor), tensor.dtype, count)
    if tensor.role == "A_log":
        data.view("<f4")[heads:] = 0.0
    return data
