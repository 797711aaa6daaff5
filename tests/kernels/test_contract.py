"""Every matrix product has the bits of the written contract: any rows, threads, cuts, alignment and CPU."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import contract
import numpy as np
import pytest

from kimistream.kernels import runtime
from kimistream.kernels.formats import WeightFormat
from kimistream.kernels.matrix import find_nonfinite, matmul, padded, split_rows

COUNTS = (1, 2, 3, 4, 7, 8, 9, 12, 16, 19, 33, 70)
COLUMNS = (1, 17, 31, 32, 33, 48, 80, 96, 144, 160, 176, 512, 1000)


def split(x):
    out = np.empty((len(x), padded(x.shape[1])), np.float32)
    split_rows(x, out)
    return out


def multiply(stored, xs, row0=0, row1=None, col0=0, extra=0):
    """Rows row0..row1 of a stored matrix times split vectors."""
    row1 = stored.rows if row1 is None else row1
    y = np.full((len(xs), col0 + row1 - row0 + extra), 7, np.float32)
    scale = stored.scale + row0 * stored.scale_bytes if stored.scale else 0
    matmul(stored.fmt, stored.weight + row0 * stored.row_bytes, scale, row1 - row0, stored.cols, xs, y, col0)
    assert (y[:, :col0] == 7).all()
    assert (y[:, y.shape[1] - extra :] == 7).all()
    return y[:, col0 : y.shape[1] - extra]


def same_bits(a, b):
    return np.array_equal(np.ascontiguousarray(a).view(np.uint32), np.ascontiguousarray(b).view(np.uint32))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fmt", contract.FORMS)
def test_products_have_the_bits_of_the_contract_for_any_number_of_vectors(fmt, threads, with_threads):
    with_threads(threads)
    for cols in COLUMNS:
        cols = contract.columns(fmt, cols)
        stored = contract.Stored(fmt, None, (29, cols))
        x = np.random.default_rng(cols).standard_normal((max(COUNTS), cols)).astype(np.float32)
        want, xs = contract.dots(stored.values, x), split(x)
        for count in COUNTS:
            assert same_bits(multiply(stored, xs[:count], col0=3, extra=2), want[:count]), (cols, count)


@pytest.mark.parametrize("fmt", [WeightFormat.BF16, WeightFormat.F32])
def test_the_bits_hold_for_denormals_huge_numbers_zeros_and_cancellation(fmt):
    rng = np.random.default_rng(5)
    shape = (13, 176)
    kinds = [
        rng.standard_normal(shape) * 2.0**-135,
        rng.standard_normal(shape) * 2.0**60,
        np.where(rng.random(shape) < 0.5, 0.0, -0.0),
        rng.standard_normal(shape) * 2.0 ** rng.integers(-100, 60, shape),
        np.where(np.arange(176) % 64 < 32, 1.0, -1.0) * (1 + rng.random(shape) * 2.0**-20),
    ]
    for weights in kinds:
        stored = contract.Stored(fmt, weights.astype(np.float32), shape)
        for vectors in kinds:
            x = vectors[:9].astype(np.float32)
            for count in (1, 3, 9):
                got = multiply(stored, split(x)[:count])
                assert same_bits(got, contract.dots(stored.values, x)[:count])


def test_every_scale_of_mxfp4_multiplies_exactly():
    stored = contract.Stored(WeightFormat.MXFP4, None, (252, 64))
    scale = np.repeat(np.arange(252, dtype=np.uint8), 2)  # with larger ones some codes go beyond float32
    start = stored.scale - stored.memory.ctypes.data
    stored.memory[start : start + scale.size] = scale
    codes = stored.memory[1 : 1 + 252 * 32].reshape(252, 32)
    values = np.empty((252, 64))
    values[:, 0::2], values[:, 1::2] = contract.E2M1[codes & 15], contract.E2M1[codes >> 4]
    values = (values * 2.0 ** (np.arange(252)[:, None] - 127.0)).astype(np.float32)
    unit = np.zeros((64, 64), np.float32)
    np.fill_diagonal(unit, 1)
    for count in (1, 3, 8, 64):
        got = multiply(stored, split(unit)[:count])
        assert np.array_equal(got, values.T[:count])


@pytest.mark.parametrize("threads", [1, 2])
def test_a_cut_of_the_rows_changes_no_bit(threads, with_threads):
    with_threads(threads)
    for fmt in contract.FORMS:
        stored = contract.Stored(fmt, None, (101, contract.columns(fmt, 304)))
        x = np.random.default_rng(6).standard_normal((19, stored.cols)).astype(np.float32)
        xs = split(x)
        for count in (1, 5, 19):
            whole = multiply(stored, xs[:count])
            for size in (1, 3, 24, 64):
                parts = [multiply(stored, xs[:count], r, min(r + size, 101)) for r in range(0, 101, size)]
                assert same_bits(np.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize("fmt", contract.FORMS)
def test_nothing_is_read_beyond_the_last_byte_of_weights_and_scales(fmt, guarded):
    for cols in (17, 48, 176, 512):
        stored = contract.Stored(fmt, None, (26, contract.columns(fmt, cols)))
        data = stored.memory[1:-1].tobytes()
        weights = stored.row_bytes * stored.rows
        x = np.random.default_rng(8).standard_normal((13, stored.cols)).astype(np.float32)
        xs, want = split(x), contract.dots(stored.values, x)
        stored.weight = guarded(data[:weights])  # the end of readable memory
        stored.scale = guarded(data[weights:]) if stored.scale else 0
        for count in (1, 2, 3, 13):
            assert same_bits(multiply(stored, xs[:count]), want[:count])
        assert find_nonfinite(fmt, stored.weight, stored.scale, stored.rows, stored.cols) == (-1, -1)


def digest() -> str:
    """One sha256 over forms x numbers of vectors x threads x cuts; each must equal the one-vector product."""
    total = hashlib.sha256()
    for fmt in contract.FORMS:
        stored = contract.Stored(fmt, None, (203, contract.columns(fmt, 1000)))
        x = np.random.default_rng(7).standard_normal((33, stored.cols)).astype(np.float32)
        xs = split(x)
        alone = np.concatenate([multiply(stored, xs[t : t + 1]) for t in range(33)])
        for threads in (1, 2):
            runtime.set_threads(threads)
            for count in (1, 2, 4, 7, 8, 16, 19, 33):
                assert same_bits(multiply(stored, xs[:count]), alone[:count])
                for size in (37, 96):
                    parts = [multiply(stored, xs[:count], r, min(r + size, 203)) for r in range(0, 203, size)]
                    assert same_bits(np.concatenate(parts, axis=1), alone[:count])
        total.update(alone.tobytes())
    return total.hexdigest()


CPUS = {"generic": {"KIMISTREAM_GENERIC_KERNELS": "1"}}
if platform.machine() in ("x86_64", "AMD64"):
    CPUS["avx2"] = {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+sse4.2,+popcnt,+lzcnt,+movbe",
    }
    CPUS["avx2 without f16c"] = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,-f16c"}


@pytest.mark.parametrize("cpu", CPUS)
def test_another_cpu_has_the_same_digest(cpu, with_threads):
    here = digest()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **CPUS[cpu]}
    code = "import json, test_contract; print(json.dumps(test_contract.digest()))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=Path(__file__).parent
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == here
