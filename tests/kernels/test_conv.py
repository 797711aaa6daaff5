"""The short convolution against float64, the golden rows, and itself cut anywhere."""

from __future__ import annotations

import numpy as np
import ops_golden
import pytest

from kimistream.kernels.conv import short_conv


def reference(x, weight, tail):
    taps = weight.shape[1]
    whole = np.concatenate([tail, x]).astype(np.float64)
    y = sum(weight[:, i].astype(np.float64) * whole[i : i + len(x)] for i in range(taps))
    return y / (1 + np.exp(-y)), whole[len(whole) - (taps - 1) :]


def in_runs(x, weight, tail, runs):
    tail, out, at = tail.copy(), np.empty_like(x), 0
    for n in runs:
        short_conv(x[at : at + n], weight, tail, out[at : at + n])
        at += n
    return out, tail


@pytest.mark.parametrize("runs", [[9], [1, 2, 6], [1] * 9, [4, 5]])
def test_the_golden_rows_in_any_runs(runs):
    op = ops_golden.load("shortconv")
    weight = op["weight"].reshape(12, 4)
    out, tail = in_runs(op["x"], weight, np.zeros((3, 12), np.float32), runs)
    ops_golden.assert_close(out, op["y_full"], 2e-6)
    np.testing.assert_array_equal(tail, op["state_full"][:, 1:].T)


def test_the_golden_rows_from_a_given_tail():
    op = ops_golden.load("shortconv")
    tail = np.ascontiguousarray(op["init_state"][:, 1:].T)
    out, tail = in_runs(op["x"][:2], op["weight"].reshape(12, 4), tail, [2])
    ops_golden.assert_close(out, op["y_init2"], 2e-6)
    np.testing.assert_array_equal(tail, op["state_init2"][:, 1:].T)


@pytest.mark.parametrize(
    ("channels", "taps"), [(768, 4), (300, 4), (17, 4), (5, 4), (300, 3), (40, 5), (20, 2)]
)
def test_any_channels_and_kernel_in_any_runs_with_the_same_bits(channels, taps):
    rng = np.random.default_rng(channels + taps)
    x = rng.normal(0, 2, (11, channels)).astype(np.float32)
    weight = rng.normal(size=(channels, taps)).astype(np.float32)
    tail = rng.normal(size=(taps - 1, channels)).astype(np.float32)
    whole, end = in_runs(x, weight, tail, [11])
    want, want_end = reference(x, weight, tail)
    ops_golden.assert_close(whole, want, 2e-6)
    np.testing.assert_array_equal(end, want_end)
    for runs in ([1] * 11, [2, 9], [7, 1, 3], [10, 1]):
        out, tail_after = in_runs(x, weight, tail, runs)
        np.testing.assert_array_equal(out.view(np.uint32), whole.view(np.uint32))
        np.testing.assert_array_equal(tail_after, end)
