"""Widening of stored numbers is exact, from any address, and reads nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from kimistream.kernels.formats import WeightFormat
from kimistream.kernels.gather import widen


def test_every_bfloat16_is_widened_exactly():
    stored = np.arange(65536, dtype=np.uint16)
    out = np.empty(65536, np.float32)
    widen(WeightFormat.BF16, stored.ctypes.data, 65536, out)
    np.testing.assert_array_equal(out.view(np.uint32), stored.astype(np.uint32) << 16)


def test_every_float16_is_widened_exactly():
    stored = np.arange(65536, dtype=np.uint16)
    out = np.empty(65536, np.float32)
    widen(WeightFormat.F16, stored.ctypes.data, 65536, out)
    want = stored.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(out, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(out[numbers].view(np.uint32), want[numbers].view(np.uint32))


def test_float32_is_copied_bit_by_bit():
    stored = np.random.default_rng(0).integers(0, 2**32, 1000, np.uint32)
    out = np.empty(1000, np.float32)
    widen(WeightFormat.F32, stored.ctypes.data, 1000, out)
    np.testing.assert_array_equal(out.view(np.uint32), stored)


@pytest.mark.parametrize("form", [WeightFormat.BF16, WeightFormat.F16, WeightFormat.F32])
@pytest.mark.parametrize("n", [1, 15, 16, 31, 33, 160])
def test_any_alignment_and_length_and_nothing_behind_the_end(form, n, guarded):
    width = 4 if form == WeightFormat.F32 else 2
    stored = np.random.default_rng(n).integers(0, 256, n * width, np.uint8)
    stored[width - 1 :: width] &= 0x3F  # finite in every form
    want = np.empty(n, np.float32)
    widen(form, stored.ctypes.data, n, want)
    room = np.full(n + 4, 5, np.float32)
    widen(form, guarded(stored.tobytes()), n, room[2 : 2 + n])  # ends where memory ends
    np.testing.assert_array_equal(room[2 : 2 + n].view(np.uint32), want.view(np.uint32))
    assert np.all(room[[0, 1, -2, -1]] == 5)
    shifted = np.zeros(n * width + 3, np.uint8)
    shifted[3:] = stored
    widen(form, shifted.ctypes.data + 3, n, room[2 : 2 + n])
    np.testing.assert_array_equal(room[2 : 2 + n].view(np.uint32), want.view(np.uint32))


def test_long_runs_are_widened_in_pieces_without_gaps():
    stored = (np.arange(300_001) % 65521).astype(np.uint16)
    stored[(stored & 0x7F80) == 0x7F80] = 0
    out = np.full(300_001, np.nan, np.float32)
    widen(WeightFormat.BF16, stored.ctypes.data, 300_001, out)
    np.testing.assert_array_equal(out.view(np.uint32), stored.astype(np.uint32) << 16)
