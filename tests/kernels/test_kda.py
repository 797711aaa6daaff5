"""Kimi Delta Attention against float64, the golden runs, and itself cut anywhere."""

from __future__ import annotations

import math

import numpy as np
import ops_golden
import pytest

from kimistream.errors import KimistreamError
from kimistream.kernels.kda import kda_decay, kda_qk_norm, kda_recurrence

GOLDEN = [
    f"kda_{form}_{run}" for form in ("lb", "softplus") for run in ("step1", "seq8", "seq8_zero", "seq70")
]


def exact_sigmoid(x):
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def reference(q, k, v, decay, beta_logits, state):
    """o and the state afterwards in float64; q, k normalised; shapes [T, heads, d], state [heads, d, d]."""
    q, k, v, decay, state = (a.astype(np.float64) for a in (q, k, v, decay, state))
    beta, out = exact_sigmoid(beta_logits), np.empty(q.shape)
    for t in range(len(q)):
        state = decay[t][:, :, None] * state
        u = v[t] - np.einsum("hkv,hk->hv", state, k[t])
        state = state + beta[t][:, None, None] * k[t][:, :, None] * u[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    return out, state


def in_runs(q, k, v, decay, beta_logits, state, runs):
    state, out, at = state.copy(), np.empty_like(q), 0
    for n in runs:
        r = slice(at, at + n)
        kda_recurrence(q[r], k[r], v[r], decay[r], beta_logits[r], state, out[r])
        at += n
    assert at == len(q)
    return out, state


def drawn(rows, heads, d, seed):
    rng = np.random.default_rng(seed)
    q, k, v = rng.normal(size=(3, rows, heads * d)).astype(np.float32)
    kda_qk_norm(q, k, heads, d)
    decay = np.exp(-rng.exponential(0.5, (rows, heads * d))).astype(np.float32)
    beta_logits = rng.normal(0, 2, (rows, heads)).astype(np.float32)
    return q, k, v, decay, beta_logits, rng.normal(size=(heads, d, d)).astype(np.float32)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_golden_runs(name):
    op = ops_golden.load(name)
    rows, heads, d = op["q"].shape
    q, k, v, z = (op[n].reshape(rows, -1).copy() for n in ("q", "k", "v", "z"))
    kda_qk_norm(q, k, heads, d)
    bound = -5.0 if "_lb_" in name else math.nan
    decay = np.empty_like(z)
    kda_decay(z, op["dt_bias"], op["A_log"][:heads].copy(), bound, decay)
    exact = np.exp(op["log_decay"].astype(np.float64)).reshape(rows, -1)
    np.testing.assert_allclose(decay, exact, rtol=1e-5, atol=1e-37)
    state0 = (
        np.ascontiguousarray(op["state0"].transpose(0, 2, 1))
        if "state0" in op
        else np.zeros((heads, d, d), np.float32)
    )
    for runs in ([rows], [1] * rows, [rows // 2, rows - rows // 2]):
        out, state = in_runs(q, k, v, decay, op["beta_logit"], state0, [n for n in runs if n])
        ops_golden.assert_close(out.reshape(rows, heads, d), op["o"], 3e-6)
        ops_golden.assert_close(state.transpose(0, 2, 1), op["state"], 3e-6)


@pytest.mark.parametrize(("heads", "d"), [(4, 128), (3, 16), (2, 48), (2, 144), (1, 256)])
def test_the_recurrence_is_right_and_the_same_bits_in_any_runs(heads, d):
    case = drawn(9, heads, d, d)
    whole, end = in_runs(*case, [9])
    q, k, v, decay = (a.reshape(9, heads, d) for a in case[:4])
    want, want_end = reference(q, k, v, decay, case[4], case[5])
    ops_golden.assert_close(whole.reshape(9, heads, d), want, 3e-6)
    ops_golden.assert_close(end, want_end, 3e-6)
    for runs in ([1] * 9, [2, 7], [3, 3, 3], [8, 1]):
        out, state = in_runs(*case, runs)
        np.testing.assert_array_equal(out.view(np.uint32), whole.view(np.uint32))
        np.testing.assert_array_equal(state.view(np.uint32), end.view(np.uint32))


def test_the_lengths_of_q_and_k_are_taken_out_with_eps_on_the_sum():
    rng = np.random.default_rng(1)
    q, k = (rng.normal(size=(2, 3, 4 * 32)) * 10.0 ** rng.uniform(-5, 3, (2, 3, 1))).astype(np.float32)
    eq, ek = (a.astype(np.float64).reshape(3, 4, 32) for a in (q, k))
    kda_qk_norm(q, k, 4, 32)
    for got, exact, factor in ((q, eq, 32**-0.5), (k, ek, 1.0)):
        want = factor * exact / np.sqrt((exact**2).sum(-1, keepdims=True) + 1e-6)
        ops_golden.assert_close(got.reshape(3, 4, 32), want, 0.0, 5e-7)


@pytest.mark.parametrize("bound", [-5.0, math.nan])
def test_the_decay_is_right_over_wide_inputs_and_in_place(bound):
    rng = np.random.default_rng(2)
    heads, d = 6, 32
    f = (rng.normal(size=(5, heads * d)) * 10.0 ** rng.uniform(-2, 1.5, (5, 1))).astype(np.float32)
    dt_bias, a_log = (
        rng.normal(size=heads * d).astype(np.float32),
        rng.uniform(-3, 3, heads).astype(np.float32),
    )
    z = (f + dt_bias).astype(np.float64)
    rate = np.repeat(np.exp(a_log.astype(np.float64)), d)
    if math.isnan(bound):
        g = -rate * (np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z))))
    else:
        g = bound * exact_sigmoid(rate * z)
    kda_decay(f, dt_bias, a_log, bound, f)
    big = g > -80
    assert np.max(np.abs(f / np.exp(g) - 1)[big] / (1 + np.abs(g[big]))) < 3e-7
    assert np.all(f[~big] <= np.exp(-79))


def test_a_head_width_that_is_not_a_multiple_of_16_is_refused():
    x = np.zeros((1, 40), np.float32)
    with pytest.raises(KimistreamError, match="width 20"):
        kda_qk_norm(x, x, 2, 20)
