"""Bands of the matrices that are made to break them: exact, and products of the plain matrix's bits, on every CPU."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_bands import BF12, BF16, Bands, bits, normal, split
from test_contract import CPUS

from kimistream.kernels import runtime
from kimistream.kernels.bands import BandForm, check_bands, find_nonfinite_bands, matmul_bands
from kimistream.kernels.matrix import find_nonfinite, matmul

ROWS = 37
WIDTHS = (32, 96, 128, 160, 333, 512, 1000)
"""Less than a unit, whole units, parts of a unit in whole groups of 32, and not."""


def matrices(cols):
    """name -> bfloat16 bits [ROWS, cols], finite in all but one."""
    rng = np.random.default_rng(cols)
    shape = (ROWS, cols)
    signs = rng.integers(0, 2, shape).astype(np.uint16) << 15
    mantissas = rng.integers(0, 128, shape).astype(np.uint16)
    outliers = normal(ROWS, cols)
    for r, c, value in ((0, 0, 3e38), (5, cols - 1, -2e30), (15, cols // 2, 1e-38), (16, 1, -1e25)):
        outliers[r, c] = bits(np.array([value]))[0]
    spread = (16 * (np.arange(ROWS * cols).reshape(shape) % 16)).astype(np.uint16)
    some = normal(ROWS, cols, scale=1.0)
    some[rng.random(shape) < 0.02] ^= 0x2000
    nonfinite = normal(ROWS, cols)
    nonfinite[rng.random(shape) < 0.01] = 0x7F80
    nonfinite[rng.random(shape) < 0.01] = 0xFFC5
    return {
        "zeros": np.zeros(shape, np.uint16),
        "negative zeros": np.full(shape, 0x8000, np.uint16),
        "denormals": signs | mantissas,
        "single huge outliers": outliers,
        "16 exponents spread evenly": signs | mantissas | (spread << 7),
        "an escape in most units": some,
        "nearly all escapes": signs | mantissas | (rng.integers(1, 200, shape).astype(np.uint16) << 7),
        "infinities and NaN": nonfinite,
    }


def packed(stored):
    """Bands in the packed form, whatever it costs."""
    return Bands(stored, form=BandForm(BF12, stored.shape[1], 16 * stored.shape[1]))


@pytest.mark.parametrize("cols", WIDTHS)
def test_every_matrix_comes_back_exactly(cols):
    for name, stored in matrices(cols).items():
        for bands in (packed(stored), Bands(stored)):
            assert bands.exact(), name
            assert check_bands(bands.form, bands.address, bands.count) == -1


def test_what_would_not_shrink_stays_plain():
    made = {name: Bands(stored) for name, stored in matrices(1000).items()}
    assert made["nearly all escapes"].form == BandForm(BF16, 1000)
    assert made["zeros"].form == BandForm(BF12, 1000, 0)
    assert made["negative zeros"].form == BandForm(BF12, 1000, 0)
    assert made["denormals"].form == BandForm(BF12, 1000, 0)
    for name in ("single huge outliers", "an escape in most units", "infinities and NaN"):
        assert made[name].form.fmt == BF12, name
        assert made[name].form.escape_room > 0
    for bands in made.values():
        assert bands.form.nbytes <= BandForm(BF16, 1000).nbytes


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cols", WIDTHS)
def test_products_have_the_bits_of_the_plain_matrix(cols, threads, with_threads):
    with_threads(threads)
    x = np.random.default_rng(1).standard_normal((19, cols)).astype(np.float32)
    x[3] = 0
    x[4, ::2] *= -0.0
    xs = split(x)
    for name, stored in matrices(cols).items():
        if name == "infinities and NaN":
            continue
        for bands in (packed(stored), Bands(stored)):
            for count in (1, 2, 3, 8, 9, 19):
                want, got = np.empty((2, count, ROWS), np.float32)
                matmul(BF16, stored.ctypes.data, 0, ROWS, cols, xs[:count], want)
                matmul_bands(bands.form, bands.address, ROWS, xs[:count], got)
                assert got.tobytes() == want.tobytes(), (name, count)


@pytest.mark.parametrize("cols", WIDTHS)
def test_the_first_nonfinite_weight_is_the_same_as_in_the_plain_matrix(cols):
    for name, stored in matrices(cols).items():
        want = find_nonfinite(BF16, stored.ctypes.data, 0, ROWS, cols)
        assert (want == (-1, -1)) == (name != "infinities and NaN")
        for bands in (packed(stored), Bands(stored)):
            assert find_nonfinite_bands(bands.form, bands.address, ROWS) == want, name


def test_one_band_begins_anywhere_in_a_run():
    stored = matrices(333)["an escape in most units"]
    bands, xs = packed(stored), split(np.random.default_rng(2).standard_normal((12, 333)))
    for count in (1, 3, 12):
        whole, parts = np.empty((2, count, ROWS), np.float32)
        matmul_bands(bands.form, bands.address, ROWS, xs[:count], whole)
        for band in range(3):
            r = 16 * band
            address = bands.address + band * bands.form.nbytes
            matmul_bands(bands.form, address, min(16, ROWS - r), xs[:count], parts, r)
        assert parts.tobytes() == whole.tobytes()


@pytest.mark.parametrize("cols", [160, 1000])
def test_nothing_is_read_beyond_the_last_band(cols, guarded):
    for fmt in (BF12, BF16):
        stored = matrices(cols)["an escape in most units"]
        room = 16 * cols if fmt == BF12 else 0
        bands = Bands(stored, form=BandForm(fmt, cols, room))
        address = guarded(bands.bytes.tobytes())
        xs = split(np.random.default_rng(3).standard_normal((70, cols)))
        for count in (1, 2, 3, 9, 19, 70):
            want, got = np.empty((2, count, ROWS), np.float32)
            matmul_bands(bands.form, bands.address, ROWS, xs[:count], want)
            matmul_bands(bands.form, address, ROWS, xs[:count], got)
            assert got.tobytes() == want.tobytes()
        assert check_bands(bands.form, address, bands.count) == -1
        assert find_nonfinite_bands(bands.form, address, ROWS) == (-1, -1)


def digest() -> str:
    """One sha256 over the bytes of bands and their products, which must be those of the plain matrix."""
    total = hashlib.sha256()
    for cols in (333, 1000):
        xs = split(np.random.default_rng(4).standard_normal((19, cols)))
        for name, stored in matrices(cols).items():
            for bands in (packed(stored), Bands(stored)):
                assert bands.exact()
                total.update(bands.bytes.tobytes())
                for count in range(1, 20) if name == "an escape in most units" else (1, 2, 3, 19):
                    if name == "infinities and NaN":
                        continue
                    want, got = np.empty((2, count, ROWS), np.float32)
                    matmul(BF16, stored.ctypes.data, 0, ROWS, cols, xs[:count], want)
                    for threads in (1, 2):
                        runtime.set_threads(threads)
                        matmul_bands(bands.form, bands.address, ROWS, xs[:count], got)
                        assert got.tobytes() == want.tobytes(), (name, count, threads)
                    total.update(got.tobytes())
    return total.hexdigest()


@pytest.mark.parametrize("cpu", [name for name in CPUS if "without" not in name])
def test_another_cpu_makes_the_same_bands_and_products(cpu, with_threads):
    here = digest()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **CPUS[cpu]}
    code = "import json, test_bands_adversarial as t; print(json.dumps(t.digest()))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=Path(__file__).parent
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == here
