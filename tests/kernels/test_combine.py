"""The weighted sum of expert outputs."""

from __future__ import annotations

import numpy as np
import pytest

from kimistream.kernels.combine import combine


@pytest.mark.parametrize(
    ("rows", "k", "width"), [(1, 1, 16), (3, 4, 96), (5, 3, 144), (2, 16, 3584), (1, 2, 7)]
)
def test_the_sum_runs_over_slots_in_order_with_one_fma_each(rows, k, width):
    rng = np.random.default_rng(rows * width)
    outputs = rng.standard_normal((rows * k, width)).astype(np.float32)
    weights = rng.random((rows, k)).astype(np.float32)
    got = np.empty((rows, width), np.float32)
    combine(outputs, weights, got)
    want = np.zeros((rows, width), np.float32)
    for j in range(k):
        # a float64 product of two float32 is exact, so this rounds once like an FMA (up to double rounding)
        want = (
            want + weights[:, j : j + 1].astype(np.float64) * outputs.reshape(rows, k, width)[:, j]
        ).astype(np.float32)
    assert np.allclose(got, want, rtol=3e-7, atol=1e-7)
    alone = np.empty((1, width), np.float32)
    for t in range(rows):
        combine(outputs[t * k : (t + 1) * k], weights[t : t + 1], alone)
        assert np.array_equal(alone[0], got[t])
