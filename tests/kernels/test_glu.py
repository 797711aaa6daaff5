"""The gated activations against float64 and against the golden numbers."""

from __future__ import annotations

import math

import numpy as np
import ops_golden
import pytest

from kimistream.kernels.exp import sigmoid
from kimistream.kernels.formats import Activation
from kimistream.kernels.glu import ABSENT, glu, sigmoid_gate


def exact_sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1 + e)


def reference(activation, gate, up, beta, linear_beta):
    g, u = gate.astype(np.float64), up.astype(np.float64)
    if activation == Activation.SILU:
        return g * exact_sigmoid(g) * u
    limited = u if math.isnan(linear_beta) else linear_beta * np.tanh(u / linear_beta)
    return beta * np.tanh(g / beta) * exact_sigmoid(g) * limited


@pytest.mark.parametrize(
    ("op_name", "activation", "linear_beta", "atol"),
    [
        ("situ_lb25", Activation.SITU, 25.0, 3e-5),
        ("situ_nolb", Activation.SITU, ABSENT, 0.0),
        ("situ_random", Activation.SITU, 25.0, 3e-5),
        ("silu_glu_random", Activation.SILU, 25.0, 3e-5),
    ],
)
def test_the_activations_give_the_golden_numbers(op_name, activation, linear_beta, atol):
    op = ops_golden.load(op_name)
    out = np.empty_like(op["y"])
    glu(activation, op["gate"], op["up"], 4.0, linear_beta, out)
    ops_golden.assert_close(out, op["y"], atol)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize(("beta", "linear_beta"), [(4.0, 25.0), (4.0, ABSENT), (3.3, 7.0)])
def test_the_relative_error_is_a_few_units_everywhere(activation, beta, linear_beta):
    rng = np.random.default_rng(1)
    spread = 10.0 ** rng.uniform(-6, 1.9, (2, 100_000)) * rng.choice([-1, 1], (2, 100_000))
    gate, up = spread.astype(np.float32)
    out = np.empty_like(gate)
    glu(activation, gate, up, beta, linear_beta, out)
    want = reference(activation, gate, up, beta, linear_beta)
    normal = np.abs(want) > 2.0**-120
    assert np.max(np.abs(out / want - 1)[normal]) < 1e-6


def test_a_huge_gate_saturates_and_a_very_negative_one_vanishes():
    gate, up = np.float32([1e30, np.inf, -1e30, -np.inf]), np.float32([1e30, np.inf, 5, -np.inf])
    out = np.empty(4, np.float32)
    glu(Activation.SITU, gate, up, 4.0, 25.0, out)
    np.testing.assert_array_equal(out, np.float32([100, 100, 0, 0]))


@pytest.mark.parametrize("n", [1, 15, 16, 17, 50])
@pytest.mark.parametrize("activation", Activation)
def test_any_number_of_columns_and_results_in_place(activation, n):
    gate, up = np.random.default_rng(n).normal(0, 3, (2, 3, n)).astype(np.float32)
    room = np.full(3 * n + 8, 9, np.float32)
    out = room[4 : 4 + 3 * n].reshape(3, n)
    glu(activation, gate, up, 4.0, 25.0, out)
    ops_golden.assert_close(out, reference(activation, gate, up, 4.0, 25.0), 1e-6)
    assert np.all(room[:4] == 9)
    assert np.all(room[-4:] == 9)
    glu(activation, gate, up, 4.0, 25.0, gate)
    np.testing.assert_array_equal(gate, out)


@pytest.mark.parametrize("activation", Activation)
def test_rows_together_have_the_bits_of_rows_alone(activation):
    gate, up = np.random.default_rng(2).normal(0, 4, (2, 9, 6144)).astype(np.float32)
    together = np.empty_like(gate)
    glu(activation, gate, up, 4.0, 25.0, together)
    for t in range(9):
        alone = np.empty((1, 6144), np.float32)
        glu(activation, gate[t : t + 1], up[t : t + 1], 4.0, 25.0, alone)
        np.testing.assert_array_equal(alone[0], together[t])


def test_the_output_gate_multiplies_by_our_sigmoid():
    o, gate = np.random.default_rng(3).normal(0, 3, (2, 5, 333)).astype(np.float32)
    out = np.empty_like(o)
    sigmoid_gate(o, gate, out)
    np.testing.assert_allclose(out, o.astype(np.float64) * exact_sigmoid(gate.astype(np.float64)), rtol=4e-7)
    ones = np.ones_like(o)
    sigmoid_gate(ones, gate, ones)
    np.testing.assert_array_equal(ones, sigmoid(gate))
