"""Bands: exact there and back for any bits, small where weights are ordinary, damage found, products of bf16's bits."""

from __future__ import annotations

import contract
import numpy as np
import pytest

from kimistream.kernels.bands import (
    BAND_ROWS,
    BandForm,
    check_bands,
    choose_form,
    decode_bands,
    encode_bands,
    find_nonfinite_bands,
    matmul_bands,
)
from kimistream.kernels.formats import WeightFormat
from kimistream.kernels.matrix import matmul, padded, row_bytes, split_rows

BF16, BF12 = WeightFormat.BF16, WeightFormat.BF12
COUNTS = (1, 2, 3, 4, 7, 8, 12, 16, 19, 33, 70)


def bits(values):
    """float32 to bfloat16 bits, cut off."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def normal(rows, cols, seed=0, scale=0.02):
    return bits(np.random.default_rng([seed, rows, cols]).standard_normal((rows, cols)) * scale)


class Bands:
    """Bands of a matrix of stored rows, in memory of their own; `form` if not the one that is chosen."""

    def __init__(self, stored, fmt=BF16, form=None, place=None):
        self.rows, self.cols = stored.shape
        self.stored = np.ascontiguousarray(stored)
        self.form = form or choose_form(fmt, self.stored.ctypes.data, *stored.shape)
        self.count = self.form.bands(self.rows)
        self.memory = np.full(self.count * self.form.nbytes + 128, 0xA5, np.uint8)
        self.start = -self.memory.ctypes.data % 64
        self.address = self.memory.ctypes.data + self.start
        encode_bands(self.form, self.stored.ctypes.data, self.rows, self.address, place)
        self.bytes = self.memory[self.start : self.start + self.count * self.form.nbytes]
        assert (self.memory[self.start + self.bytes.size :] == 0xA5).all()

    def back(self):
        out = np.full((self.rows, self.cols), 0x5A, self.stored.dtype)
        decode_bands(self.form, self.address, self.rows, out.ctypes.data)
        return out

    def exact(self):
        return self.back().tobytes() == self.stored.tobytes()


def split(x):
    out = np.empty((len(x), padded(x.shape[1])), np.float32)
    split_rows(np.ascontiguousarray(x, np.float32), out)
    return out


@pytest.mark.parametrize(
    "shape", [(16, 512), (37, 1000), (100, 333), (5, 130), (1, 640), (40, 17), (48, 7168)]
)
def test_a_matrix_comes_back_exactly(shape):
    bands = Bands(normal(*shape))
    assert bands.exact()
    assert check_bands(bands.form, bands.address, bands.count) == -1


def test_ordinary_weights_take_about_12_bits_and_small_matrices_no_more_than_plain_bands():
    wide = Bands(normal(64, 7168))
    assert wide.form.fmt == BF12
    assert 8 * wide.bytes.size / wide.stored.size < 12.05
    for shape in ((40, 17), (16, 80), (16, 130)):
        small = Bands(normal(*shape))
        assert small.form.fmt == BF16
        assert small.form.nbytes == 64 + -(-BAND_ROWS * shape[1] * 2 // 64) * 64
        assert small.exact()


def test_a_changed_bit_anywhere_is_found_and_its_band_named():
    for fmt in (BF12, BF16):
        stored = normal(70, 256)
        bands = Bands(stored, form=BandForm(fmt, 256, 64 if fmt == BF12 else 0))
        rng = np.random.default_rng(1)
        nbytes = bands.form.nbytes
        for at in [0, 7, 8, 23, 24, 63, 64, nbytes - 1, *rng.integers(0, bands.bytes.size, 300)]:
            bit = np.uint8(1 << rng.integers(8))
            bands.bytes[at] ^= bit
            assert check_bands(bands.form, bands.address, bands.count) == at // nbytes
            bands.bytes[at] ^= bit
        assert check_bands(bands.form, bands.address, bands.count) == -1


def test_lines_that_changed_places_and_the_same_bit_flipped_twice_are_found():
    bands = Bands(normal(16, 2048))
    lines = bands.bytes.reshape(-1, 64)
    for one, other in ((1, 2), (1, 5), (3, 99)):
        lines[[one, other]] = lines[[other, one]]
        assert check_bands(bands.form, bands.address, 1) == 0
        lines[[one, other]] = lines[[other, one]]
    for one in range(1, 40):
        lines[one, 3] ^= 128
        lines[one + 4, 3] ^= 128
        assert check_bands(bands.form, bands.address, 1) == 0
        lines[one, 3] ^= 128
        lines[one + 4, 3] ^= 128


def test_a_whole_band_at_another_place_is_found_when_bands_know_their_place():
    bands = Bands(normal(64, 512), place=1000)
    assert check_bands(bands.form, bands.address, 4, 1000) == -1
    assert check_bands(bands.form, bands.address + bands.form.nbytes, 3, 1001) == -1
    assert check_bands(bands.form, bands.address, 4, 1001) == 0
    rows = bands.bytes.reshape(4, -1)
    rows[[1, 2]] = rows[[2, 1]]
    assert check_bands(bands.form, bands.address, 4, 1000) == 1


def test_bands_made_in_parts_are_the_bands_made_at_once():
    stored = normal(75, 900)
    whole = Bands(stored, place=7)
    parts = [Bands(stored[r : r + 32], form=whole.form, place=7 + r // 16).bytes for r in (0, 32, 64)]
    assert np.concatenate(parts).tobytes() == whole.bytes.tobytes()


def test_a_form_with_too_little_room_is_refused():
    stored = np.random.default_rng(2).integers(0, 65536, (16, 512)).astype(np.uint16)
    with pytest.raises(ValueError, match="escapes"):
        Bands(stored, form=BandForm(BF12, 512, 16))


@pytest.mark.parametrize("cols", [512, 640, 333, 1000])
def test_products_have_the_bits_of_the_plain_matrix(cols):
    stored = normal(75, cols)
    stored[[3, 20, 21, 74], [5, 100, 17, cols - 1]] = bits(np.array([1e30, -1e-30, 3e20, 1e-12]))
    x = np.random.default_rng(3).standard_normal((max(COUNTS), cols)).astype(np.float32)
    xs = split(x)
    bands = Bands(stored)
    for count in COUNTS:
        want, got = np.empty((count, 75), np.float32), np.full((count, 80), 7, np.float32)
        matmul(BF16, stored.ctypes.data, 0, 75, cols, xs[:count], want)
        matmul_bands(bands.form, bands.address, 75, xs[:count], got, 2)
        assert got[:, 2:77].tobytes() == want.tobytes(), count
        assert (got[:, :2] == 7).all()
        assert (got[:, 77:] == 7).all()


@pytest.mark.parametrize("fmt", [WeightFormat.F32, WeightFormat.F16])
def test_other_forms_go_through_bands_as_they_are(fmt):
    stored = contract.Stored(fmt, None, (35, 50))
    raw = stored.memory[1 : 1 + 35 * row_bytes(fmt, 50)].reshape(35, -1)
    form = choose_form(fmt, stored.weight, 35, 50)
    assert form == BandForm(fmt, 50)
    memory = np.zeros(form.bands(35) * form.nbytes, np.uint8)
    encode_bands(form, stored.weight, 35, memory.ctypes.data)
    back = np.empty_like(raw)
    decode_bands(form, memory.ctypes.data, 35, back.ctypes.data)
    assert back.tobytes() == raw.tobytes()
    x = np.random.default_rng(4).standard_normal((9, 50)).astype(np.float32)
    for count in (1, 3, 9):
        got = np.empty((count, 35), np.float32)
        matmul_bands(form, memory.ctypes.data, 35, split(x[:count]), got)
        assert got.tobytes() == contract.dots(stored.values, x[:count]).tobytes()


def test_the_first_weight_that_is_not_finite_is_found():
    stored = normal(50, 700)
    for row, col, bad in ((33, 699, 0x7F80), (33, 5, 0xFFC1), (2, 77, 0xFF80), (2, 76, 0x7F81)):
        assert find_nonfinite_bands(Bands(stored).form, Bands(stored).address, 50) != (row, col)
        stored[row, col] = bad
        bands = Bands(stored)
        assert bands.exact()
        assert find_nonfinite_bands(bands.form, bands.address, 50) == (row, col)
    clean = Bands(normal(50, 700))
    assert find_nonfinite_bands(clean.form, clean.address, 50) == (-1, -1)
