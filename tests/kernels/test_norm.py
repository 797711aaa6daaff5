"""The norms against float64 and against the golden rows."""

from __future__ import annotations

import numpy as np
import ops_golden
import pytest

from kimistream.kernels.exp import sigmoid
from kimistream.kernels.norm import gated_head_norm, rms_norm


def reference(x, weight, eps):
    x = x.astype(np.float64)
    return weight.astype(np.float64) * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


@pytest.mark.parametrize("eps", [1e-5, 1e-6])
def test_rms_norm_gives_the_golden_rows(eps):
    op = ops_golden.load(f"rmsnorm_eps1e-{5 if eps == 1e-5 else 6}")
    out = np.empty_like(op["y"])
    rms_norm(op["x"], op["weight"], eps, out)
    ops_golden.assert_close(out, op["y"], 2e-6)


@pytest.mark.parametrize("width", [1, 7, 16, 63, 64, 100, 512, 7168])
def test_rms_norm_is_right_for_any_width(width):
    rng = np.random.default_rng(width)
    x = rng.normal(0, 3, (5, width)).astype(np.float32)
    weight = rng.normal(1, 0.2, width).astype(np.float32)
    out = np.empty_like(x)
    rms_norm(x, weight, 1e-5, out)
    ops_golden.assert_close(out, reference(x, weight, 1e-5), 2e-6)


def test_slices_of_wider_rows_are_normed_in_place_and_the_rest_is_left_alone():
    rng = np.random.default_rng(1)
    wide = rng.normal(size=(4, 57)).astype(np.float32)
    before, weight = wide.copy(), np.ones(40, np.float32)
    alone = np.empty((4, 40), np.float32)
    rms_norm(np.ascontiguousarray(wide[:, :40]), weight, 1e-6, alone)
    rms_norm(wide[:, :40], weight, 1e-6, wide[:, :40])
    np.testing.assert_array_equal(wide[:, :40], alone)
    np.testing.assert_array_equal(wide[:, 40:], before[:, 40:])


@pytest.mark.parametrize(("heads", "d"), [(96, 128), (3, 16), (5, 40)])
def test_gated_head_norm_norms_each_head_by_itself(heads, d):
    rng = np.random.default_rng(d)
    o = (rng.normal(size=(3, heads, d)) * rng.uniform(1e-4, 100, (3, heads, 1))).astype(np.float32)
    gate = rng.normal(0, 5, (3, heads * d)).astype(np.float32)
    gate[0, :3] = [-100, 0, 100]
    weight = rng.normal(1, 0.2, d).astype(np.float32)
    out = np.empty((3, heads * d), np.float32)
    gated_head_norm(o.reshape(3, -1), weight, 1e-5, gate, out)
    want = reference(o, weight, 1e-5).reshape(3, -1) / (1 + np.exp(-gate.astype(np.float64)))
    ops_golden.assert_close(out, want, 2e-6)


def test_rows_together_have_the_bits_of_rows_alone():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(9, 7168)).astype(np.float32)
    weight, gate = rng.normal(size=(2, 9, 7168)).astype(np.float32)
    normed, gated = np.empty_like(x), np.empty_like(x)
    for rows in range(1, 10):
        rms_norm(x[:rows], weight[0], 1e-5, normed[:rows])
        gated_head_norm(x[:rows], weight[0, :128], 1e-5, gate[:rows], gated[:rows])
        for t in range(rows):
            a, b = np.empty((2, 1, 7168), np.float32)
            rms_norm(x[t : t + 1], weight[0], 1e-5, a)
            gated_head_norm(x[t : t + 1], weight[0, :128], 1e-5, gate[t : t + 1], b)
            np.testing.assert_array_equal(a[0], normed[t])
            np.testing.assert_array_equal(b[0], gated[t])


def test_the_gate_is_our_own_sigmoid():
    gate = np.linspace(-90, 90, 128, dtype=np.float32)[None]
    out = np.empty((1, 128), np.float32)
    gated_head_norm(np.ones((1, 128), np.float32), np.ones(128, np.float32), 0.0, gate, out)
    np.testing.assert_array_equal(out, sigmoid(gate))
