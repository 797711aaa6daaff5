"""Whole blocks against the golden operations: KDA and MoE layers, the head, MXFP4 products.

What end-to-end goldens do not catch shows here: the eps of the l2 norm, the router bias, the scaling.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from kimistream.checkpoint.config import KdaConfig, MoeConfig, load_config
from kimistream.kernels.formats import WeightFormat
from kimistream.kernels.matrix import matmul, padded, split_rows
from kimistream.kernels.norm import rms_norm
from kimistream.kernels.residual import residual_mix
from kimistream.model.kda import kda_layer
from kimistream.model.moe import moe_layer
from kimistream.model.rows import Run, place
from kimistream.model.state import SequenceState
from kimistream.model.workspace import Workspace

DATA = Path(__file__).parents[1] / "data"
TINY = load_config(DATA / "tiny-k3")
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def op(name: str) -> dict[str, np.ndarray]:
    with safe_open(DATA / "ops.golden.safetensors", "numpy") as file:
        names = [key for key in file.keys() if key.startswith(f"{name}.")]  # noqa: SIM118 (not a dict)
        return {key.removeprefix(f"{name}."): file.get_tensor(key) for key in names}


def near(got: np.ndarray, want: np.ndarray, atol: float) -> None:
    assert np.all(np.abs(got.astype(np.float64) - want) <= atol + 1e-5 * np.abs(want))


class Memory:
    """Stands for the tape: matrices of float32 in memory, named by what would be their Matrix."""

    def __call__(self, matrix: np.ndarray, xs: np.ndarray, y: np.ndarray) -> np.ndarray:
        matrix = np.ascontiguousarray(matrix)
        matmul(WeightFormat.F32, matrix.ctypes.data, 0, *matrix.shape, xs, y, 0)
        return y


class Store:
    """Stands for the expert store: hands the experts over backwards, two at a time."""

    def __init__(self, tensors: list[list[np.ndarray]]) -> None:
        self.tensors = tensors

    def request(self, layer: int, experts: np.ndarray) -> None:
        self.wanted = experts.tolist()

    def arrivals(self):
        left = [
            (i, tuple(t.ctypes.data if t.size else 0 for t in self.tensors[e]))
            for i, e in enumerate(self.wanted)
        ]
        while left:
            yield left[-2:][::-1]
            del left[-2:]


def weights(tensors: dict[str, np.ndarray], prefix: str = "w.") -> dict[str, np.ndarray]:
    """Role -> array: `w.q_proj.weight` becomes `q_proj`."""
    return {
        k.removeprefix(prefix).removesuffix(".weight"): v for k, v in tensors.items() if k.startswith(prefix)
    }


@pytest.mark.parametrize(
    ("name", "bound", "full"),
    [
        ("kda_layer", -5.0, True),
        ("kda_layer_lowrank_softplus", None, False),
    ],
)
def test_a_kda_layer_agrees_whole_and_with_a_carried_state(name, bound, full):
    want = op(name)
    config = dataclasses.replace(
        TINY, hidden_size=24, kda=KdaConfig(3, 16, 4, bound, full), layer_kinds=("kda",), num_layers=1
    )
    role = weights(want)
    vectors = {k: np.ascontiguousarray(v.reshape(-1)) for k, v in role.items()}
    for cuts in ([(0, 7)], [(0, 5), (5, 6), (6, 7)]):
        state, rows = SequenceState(config, 8), []
        for a, b in cuts:
            ws = Workspace(config, 7)
            ws.resize(b - a)
            split_rows(np.ascontiguousarray(want["x"][a:b]), ws("stream", "x"))
            placed = place([Run(state, np.zeros(b - a, np.int32))])
            rows.append(kda_layer(config, role, vectors, 0, Memory(), ws, placed).copy())
            state.position += b - a
            if b == 5:
                near(state.kda[0], want["state_after5"].swapaxes(-1, -2), 5e-6)
                near(state.tails[0], want["conv_state_after5"][..., 1:].swapaxes(-1, -2), 5e-6)
        near(np.concatenate(rows), want["y" if len(cuts) == 1 else "y_cached"], 5e-6)
        near(state.kda[0], want["state_after7"].swapaxes(-1, -2), 5e-6)


@pytest.mark.parametrize(
    ("name", "latent", "activation", "scaling"),
    [
        ("moe_latent", 64, "situ", 1.0),
        ("moe_plain_silu", None, "silu", 2.446),
    ],
)
def test_a_moe_layer_agrees_whatever_the_order_of_arrival(name, latent, activation, scaling):
    want = op(name)
    moe = MoeConfig(8, 3, 2, 32, latent, True, True, scaling, True, 1, 1)
    config = dataclasses.replace(
        TINY,
        hidden_size=40,
        moe=moe,
        activation=activation,
        ffn_kinds=("moe",),
        layer_kinds=("kda",),
        num_layers=1,
    )
    role = weights(want)
    shared = {
        f"shared_{k.removeprefix('shared_experts.')}": v for k, v in role.items() if k.startswith("shared")
    }
    matrices = role | shared | {"router": role["gate"]}
    vectors = {"e_score_correction_bias": role["gate.e_score_correction_bias"]}
    if latent:
        vectors["routed_expert_norm"] = role["routed_expert_norm"]
    none = np.zeros(0, np.uint8)
    experts = []
    for e in range(8):
        parts = [f"experts.{e}.w{i}" for i in (1, 2, 3)]
        if latent:
            experts.append([want[f"w.{p}.weight_{k}"] for p in parts for k in ("packed", "scale")])
        else:
            experts.append([t for p in parts for t in (want[f"w.{p}.weight"], none)])
    ws = Workspace(config, 6)
    ws.resize(6)
    split_rows(want["x"], ws("stream", "x"))
    fmt = WeightFormat.MXFP4 if latent else WeightFormat.F32
    routed = np.empty((6, 3), np.int32)
    got = moe_layer(config, 0, matrices, vectors, fmt, Memory(), Store(experts), ws, routed)
    near(got, want["y"], 3e-5)


def test_the_head_agrees():
    want = op("head")
    rows, hidden = want["prefix"].shape
    stack = np.ascontiguousarray(want["blocks"].swapaxes(0, 1))
    mixed, normed = np.empty((2, rows, hidden), np.float32)
    residual_mix(stack, 3, want["prefix"], want["res_norm"], want["res_proj"].reshape(-1), 1e-5, mixed)
    near(mixed, want["mixed"], 5e-6)
    rms_norm(mixed, want["norm"], 1e-5, normed)
    near(normed, want["normed"], 5e-6)
    x = np.empty((rows, padded(hidden)), np.float32)
    split_rows(normed, x)
    near(Memory()(want["lm_head"], x, np.empty((rows, 30), np.float32)), want["logits"], 5e-6)


def decoded(packed: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """What the kernels make of MXFP4 rows: the product with each unit vector, so every weight by itself."""
    rows, cols = len(packed), 2 * packed.shape[1]
    out = np.empty((rows, cols), np.float32)
    xs = np.empty((cols, padded(cols)), np.float32)
    split_rows(np.eye(cols, dtype=np.float32), xs)
    result = np.empty((cols, rows), np.float32)
    packed, scale = np.ascontiguousarray(packed), np.ascontiguousarray(scale)
    matmul(WeightFormat.MXFP4, packed.ctypes.data, scale.ctypes.data, rows, cols, xs, result, 0)
    out[:] = result.T
    return out


def test_released_mxfp4_rows_decode_exactly():
    rows = np.load(DATA / "real_mxfp4_rows.npz")
    packed, scale = rows["packed"], rows["scale"]
    want = np.empty((64, 3584))
    want[:, 0::2], want[:, 1::2] = E2M1[packed & 15], E2M1[packed >> 4]
    want *= np.repeat(2.0 ** (scale.astype(np.float64) - 127), 32, axis=1)
    assert np.array_equal(decoded(packed, scale), want.astype(np.float32))


def test_every_mxfp4_code_and_finite_scale_decodes_exactly():
    want = op("mxfp4")
    finite = np.isfinite(want["y"]).all(axis=1)
    assert finite.sum() >= 10
    got = decoded(want["packed"][finite], want["scale"][finite])
    assert np.array_equal(got, want["y"][finite])  # a signed zero is lost in the sum of a product


def test_an_mxfp4_product_agrees():
    want = op("mxfp4_matvec")
    x = np.empty((5, padded(96)), np.float32)
    split_rows(want["x"], x)
    y = np.empty((5, 24), np.float32)
    packed, scale = np.ascontiguousarray(want["packed"]), np.ascontiguousarray(want["scale"])
    matmul(WeightFormat.MXFP4, packed.ctypes.data, scale.ctypes.data, 24, 96, x, y, 0)
    near(y, want["y"], 2e-4)
