"""Matrix products against float64, the split order of vectors, and the search for NaN and infinity."""

from __future__ import annotations

import contract
import numpy as np
import pytest

from kimistream.kernels.formats import WeightFormat
from kimistream.kernels.matrix import all_finite, find_nonfinite, matmul, padded, split_rows


def split(x):
    out = np.full((len(x), padded(x.shape[1])), np.nan, np.float32)
    split_rows(x, out)
    return out


@pytest.mark.parametrize("cols", [1, 16, 32, 33, 48, 80, 160, 1000])
def test_split_rows_puts_even_columns_before_odd_ones_in_each_group(cols):
    x = np.random.default_rng(cols).standard_normal((3, cols)).astype(np.float32)
    out = split(x)
    assert out.shape[1] % 32 == 0
    for column in range(out.shape[1]):
        group, k = divmod(column, 32)
        place = group * 32 + (k // 2 if k % 2 == 0 else 16 + k // 2)
        want = x[:, column] if column < cols else np.zeros(3)
        assert np.array_equal(out[:, place], want)


@pytest.mark.parametrize("fmt", contract.FORMS)
@pytest.mark.parametrize("count", [1, 2, 5, 9, 40])
def test_products_are_right_to_float32(fmt, count):
    for rows, cols in ((1, 32), (1, 96), (50, 1824), (131, 416)):
        stored = contract.Stored(fmt, None, (rows, cols))
        x = np.random.default_rng(rows).standard_normal((count, cols)).astype(np.float32)
        y = np.empty((count, rows), np.float32)
        matmul(fmt, stored.weight, stored.scale, rows, cols, split(x), y)
        weights = stored.values.astype(np.float64)
        want = x.astype(np.float64) @ weights.T
        size = np.abs(x).astype(np.float64) @ np.abs(weights).T
        # each of 32 running sums takes one rounding per group, then five more
        assert (np.abs(y - want) <= size * (cols / 32 + 6) * 2.0**-24).all()


def test_no_vectors_and_no_rows_are_no_work():
    x, y = np.empty((0, 32), np.float32), np.empty((0, 5), np.float32)
    matmul(WeightFormat.BF16, 0, 0, 5, 32, x, y)
    x, y = np.ones((2, 32), np.float32), np.ones((2, 5), np.float32)
    matmul(WeightFormat.BF16, 0, 0, 0, 32, x, y)
    assert (y == 1).all()
    assert find_nonfinite(WeightFormat.BF16, 0, 0, 0, 32) == (-1, -1)


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("cols", [1, 7, 16, 100])
def test_all_finite_sees_any_bad_number_in_its_columns_only(bad, cols):
    good = np.full((4, cols), np.finfo(np.float32).max, np.float32)
    good[1] *= -1
    assert all_finite(good)
    for t, k in {(0, 0), (3, cols - 1), (2, cols // 2)}:
        y = good.copy()
        y[t, k] = bad
        assert not all_finite(y)
        assert not all_finite(y, k, k + 1)
        assert all_finite(y, 0, k)
        assert all_finite(y, k + 1, cols)


@pytest.mark.parametrize("fmt", [WeightFormat.BF16, WeightFormat.F16, WeightFormat.F32])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_bad_weight_is_found(fmt, bad):
    for spots in ([(0, 0)], [(299, 1008)], [(100, 31), (100, 32), (250, 0)]):
        values = np.random.default_rng(1).standard_normal((300, 1009)).astype(np.float32)
        for row, col in spots:
            values[row, col] = bad
        stored = contract.Stored(fmt, values, values.shape)
        assert find_nonfinite(fmt, stored.weight, stored.scale, 300, 1009) == spots[0]


def test_a_scale_of_255_is_found_at_the_first_column_of_its_group():
    stored = contract.Stored(WeightFormat.MXFP4, None, (50, 320))
    place = (WeightFormat.MXFP4, stored.weight, stored.scale, 50, 320)
    assert find_nonfinite(*place) == (-1, -1)
    start = stored.scale - stored.memory.ctypes.data
    for row, group in ((49, 9), (20, 3), (20, 1), (0, 0)):
        stored.memory[start + row * 10 + group] = 255
        assert find_nonfinite(*place) == (row, group * 32)


@pytest.mark.parametrize("fmt", contract.FORMS)
@pytest.mark.parametrize("count", [1, 3, 20])
def test_a_bad_weight_makes_its_results_bad(fmt, count):
    stored = contract.Stored(fmt, None, (40, 320))
    if fmt == WeightFormat.MXFP4:
        stored.memory[stored.scale - stored.memory.ctypes.data + 17 * 10 + 4] = 255
    else:
        values = stored.values.copy()
        values[17, 130] = np.nan
        stored = contract.Stored(fmt, values, values.shape)
    y = np.empty((count, 40), np.float32)
    matmul(fmt, stored.weight, stored.scale, 40, 320, split(np.ones((count, 320), np.float32)), y)
    assert np.isnan(y[:, 17]).all()
    assert np.isfinite(np.delete(y, 17, axis=1)).all()
