"""The attention-residual mix against float64 and against the golden rows."""

from __future__ import annotations

import numpy as np
import ops_golden
import pytest

from kimistream.kernels.residual import add, residual_mix


def reference(stack, s, norm, proj, eps):
    v = np.concatenate([stack, s[None]]).astype(np.float64)
    keys = v / np.sqrt((v * v).mean(-1, keepdims=True) + eps)
    score = (keys * norm.astype(np.float64) * proj.astype(np.float64)).sum(-1)
    p = np.exp(score - score.max(0))
    p /= p.sum(0)
    return (p[:, :, None] * v).sum(0)


def drawn(count, rows, width, seed):
    rng = np.random.default_rng(seed)
    stack = (rng.normal(size=(count, rows, width)) * rng.uniform(1e-3, 30, (count, rows, 1))).astype(
        np.float32
    )
    s, norm = rng.normal(size=(rows, width)), rng.normal(1, 0.1, width)
    proj = rng.normal(0, 3 / np.sqrt(width), width)
    return stack, s.astype(np.float32), norm.astype(np.float32), proj.astype(np.float32)


@pytest.mark.parametrize("op_name", ["attnres_1", "attnres_4", "attnres_8_sharp"])
def test_the_mix_gives_the_golden_rows(op_name):
    op = ops_golden.load(op_name)
    stack = np.ascontiguousarray(op["blocks"].transpose(1, 0, 2))
    out = np.empty_like(op["y"])
    residual_mix(stack, len(stack), op["prefix"], op["norm_weight"], op["proj_weight"].reshape(-1), 1e-5, out)
    ops_golden.assert_close(out, op["y"], 1e-5)


@pytest.mark.parametrize(("count", "width"), [(1, 7168), (8, 7168), (3, 160), (2, 41), (5, 7)])
def test_the_mix_is_right_for_any_width_and_depth(count, width):
    stack, s, norm, proj = drawn(count, 3, width, width)
    out = np.empty_like(s)
    residual_mix(stack, count, s, norm, proj, 1e-5, out)
    ops_golden.assert_close(out, reference(stack, s, norm, proj, 1e-5), 2e-5)


def test_eps_counts_for_small_rows():
    stack, s, norm, proj = drawn(2, 2, 64, 4)
    stack, s = np.sign(stack) * np.float32(3e-3), s * np.float32(3e-3)
    out = np.empty_like(s)
    for eps in (1e-5, 1e-6):
        residual_mix(stack, 2, s, norm, proj, eps, out)
        ops_golden.assert_close(out, reference(stack, s, norm, proj, eps), 1e-8)
    assert np.abs(reference(stack, s, norm, proj, 1e-5) - out).max() > 1e-4


def test_an_empty_stack_gives_the_sum_itself():
    _, s, norm, proj = drawn(1, 3, 100, 5)
    out = np.empty_like(s)
    residual_mix(np.empty((8, 3, 100), np.float32), 0, s, norm, proj, 1e-5, out)
    np.testing.assert_array_equal(out, s)


def test_entries_beyond_the_count_are_not_looked_at():
    stack, s, norm, proj = drawn(4, 3, 100, 6)
    want, got = np.empty_like(s), np.empty_like(s)
    residual_mix(np.ascontiguousarray(stack[:2]), 2, s, norm, proj, 1e-5, want)
    stack[2:] = np.nan
    residual_mix(stack, 2, s, norm, proj, 1e-5, got)
    np.testing.assert_array_equal(got, want)


def test_rows_together_have_the_bits_of_rows_alone():
    stack, s, norm, proj = drawn(8, 9, 7168, 7)
    for rows in range(1, 10):
        out = np.empty_like(s[:rows])
        residual_mix(np.ascontiguousarray(stack[:, :rows]), 8, s[:rows], norm, proj, 1e-5, out)
        alone = np.empty((1, 7168), np.float32)
        last = np.ascontiguousarray(stack[:, rows - 1 : rows])
        residual_mix(last, 8, s[rows - 1 : rows], norm, proj, 1e-5, alone)
        np.testing.assert_array_equal(out[rows - 1], alone[0])


def test_the_result_may_replace_the_sum():
    stack, s, norm, proj = drawn(3, 4, 200, 8)
    out = np.empty_like(s)
    residual_mix(stack, 3, s, norm, proj, 1e-5, out)
    residual_mix(stack, 3, s, norm, proj, 1e-5, s)
    np.testing.assert_array_equal(s, out)


def test_add_adds_in_place():
    s, a = np.float32([[1, 2]]), np.float32([[0.5, -2]])
    add(s, a)
    np.testing.assert_array_equal(s, [[1.5, 0]])
