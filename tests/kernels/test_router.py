"""The choice of experts against the golden rows and against a plain model of it."""

from __future__ import annotations

import numpy as np
import ops_golden
import pytest

from kimistream.kernels.exp import sigmoid
from kimistream.kernels.router import route

GOLDEN = [
    "router_random",
    "router_bias_selects",
    "router_bias_negative",
    "router_saturated",
    "router_underflow",
    "router_ties",
    "router_scaled",
    "router_norenorm",
    "router_top1",
    "router_softmax",
    "router_grouped",
]


def chosen(logits, bias, k, by_sigmoid=True, groups=1, kept=1, renormalize=True, scaling=1.0):
    ids = np.full((len(logits), k), -1, np.int32)
    weights = np.full((len(logits), k), np.nan, np.float32)
    route(logits, bias, k, by_sigmoid, groups, kept, renormalize, scaling, ids, weights)
    return ids, weights


def best(values, k):
    """The k largest, ties to the lower index, ascending."""
    return np.sort(np.argsort(-values, kind="stable")[:k])


def model(logits, bias, k, groups, kept):
    """Plain selection on float32 scores of our own sigmoid."""
    scores = sigmoid(logits)
    biased = scores + bias
    out = []
    for row in biased:
        by_group = row.reshape(groups, -1)
        two = np.sort(by_group, 1)[:, ::-1][:, :2]
        allowed = best(two[:, 0] + two[:, 1], kept) if groups > 1 else np.arange(groups)
        masked = np.full_like(by_group, -np.inf)
        masked[allowed] = by_group[allowed]
        out.append(best(masked.reshape(-1), k))
    ids = np.array(out, np.int32)
    return ids, np.take_along_axis(scores, ids, 1)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_golden_rows_choose_the_same_experts(name):
    op, config = ops_golden.load(name), ops_golden.config(name)
    logits = op["x"] @ op["weight"].T if name == "router_random" else op["x"]
    ids, weights = chosen(
        np.ascontiguousarray(logits),
        op["bias"],
        config["num_experts_per_token"],
        config["moe_router_activation_func"] == "sigmoid",
        config["num_expert_group"],
        config["topk_group"],
        config["moe_renormalize"],
        config["routed_scaling_factor"],
    )
    if name == "router_ties":
        ids_wanted, _ = model(logits, op["bias"], 4, 1, 1)
        np.testing.assert_array_equal(ids, ids_wanted)
        assert {3, 7, 11} <= set(ids[0].tolist())
        np.testing.assert_array_equal(ids[1], [0, 2, 4, 6])
        ops_golden.assert_close(np.sort(weights), np.sort(op["weights"]), 1e-6)
    else:
        np.testing.assert_array_equal(ids, op["ids"])
        ops_golden.assert_close(weights, op["weights"], 0.0 if name == "router_underflow" else 1e-6)


@pytest.mark.parametrize(
    ("experts", "k", "groups", "kept"), [(896, 16, 1, 1), (64, 6, 8, 3), (30, 3, 10, 1), (8, 8, 1, 1)]
)
def test_exact_ties_go_to_the_lower_id_in_experts_and_in_groups(experts, k, groups, kept):
    rng = np.random.default_rng(experts)
    logits = rng.integers(-2, 3, (40, experts)).astype(np.float32)  # ties everywhere
    bias = rng.choice([0.0, 0.0, 0.125], experts).astype(np.float32)
    ids, weights = chosen(logits, bias, k, groups=groups, kept=kept, renormalize=False)
    want_ids, want_weights = model(logits, bias, k, groups, kept)
    np.testing.assert_array_equal(ids, want_ids)
    np.testing.assert_array_equal(weights, want_weights)


def test_weights_are_unbiased_normalised_and_scaled_in_the_order_of_the_ids():
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 2, (20, 896)).astype(np.float32)
    bias = rng.normal(0, 0.3, 896).astype(np.float32)
    ids, weights = chosen(logits, bias, 16, scaling=2.446)
    want_ids, scores = model(logits, bias, 16, 1, 1)
    np.testing.assert_array_equal(ids, want_ids)
    exact = scores.astype(np.float64)
    ops_golden.assert_close(weights, 2.446 * exact / (exact.sum(1, keepdims=True) + 1e-20), 1e-7, 1e-6)


def test_softmax_scores_sum_to_one_over_all_experts():
    logits = np.random.default_rng(6).normal(0, 30, (7, 50)).astype(np.float32)
    ids, weights = chosen(logits, np.zeros(50, np.float32), 50, by_sigmoid=False, renormalize=False)
    np.testing.assert_array_equal(ids, np.tile(np.arange(50), (7, 1)))
    x = logits.astype(np.float64)
    want = np.exp(x - x.max(1, keepdims=True))
    ops_golden.assert_close(weights, want / want.sum(1, keepdims=True), 1e-37, 5e-6)


def test_one_expert_is_not_normalised():
    _, weights = chosen(np.float32([[0.0, -1.0]]), np.zeros(2, np.float32), 1, scaling=2.0)
    assert weights[0, 0] == 1.0


def test_nan_among_the_logits_still_gives_different_experts_in_range():
    logits = np.full((3, 40), np.nan, np.float32)
    logits[1, ::2], logits[2, 20:] = 1, 1
    ids, _ = chosen(logits, np.zeros(40, np.float32), 6)
    for row in ids:
        assert len(set(row.tolist())) == 6
        assert row.min() >= 0
        assert row.max() < 40


def test_rows_together_have_the_bits_of_rows_alone():
    rng = np.random.default_rng(7)
    logits = rng.normal(0, 2, (9, 896)).astype(np.float32)
    bias = rng.normal(0, 0.1, 896).astype(np.float32)
    for rows in range(1, 10):
        ids, weights = chosen(logits[:rows], bias, 16)
        one_id, one_weight = chosen(logits[rows - 1 : rows], bias, 16)
        np.testing.assert_array_equal(ids[-1], one_id[0])
        np.testing.assert_array_equal(weights[-1], one_weight[0])
