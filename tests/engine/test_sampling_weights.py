"""The arithmetic under the choice: exp, sums, log and random numbers, the same bits everywhere."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from kimistream.engine.options import SamplingOptions
from kimistream.engine.random import random64
from kimistream.engine.sampling import Sampler
from kimistream.engine.weights import bits_for, log_sum, pick, weights

VOCAB = 163_840
EXACT = Context(prec=50)


@pytest.mark.parametrize("temperature", [1e-5, 0.6, 1.0, 100.0])
@pytest.mark.parametrize("count", [2, 300, VOCAB])
def test_a_weight_is_the_exact_exponential_rounded(temperature, count):
    bits = bits_for(count)
    rng = np.random.default_rng(count)
    reach = (bits + 2) * 0.6931 * temperature
    logits = np.concatenate(([0.0], -rng.random(400) * reach, -rng.random(50) * 1e-9 * temperature))
    got = weights(logits, 0.0, temperature, bits)
    for x, weight in zip(logits, got, strict=True):
        exact = EXACT.multiply(
            EXACT.exp(EXACT.divide(Decimal(float(x)), Decimal(temperature))), Decimal(2**bits)
        )
        assert abs(Decimal(int(weight)) - exact) < Decimal("0.51") + exact * Decimal(2) ** -50
    assert got[0] == 2**bits


def test_what_is_out_of_reach_weighs_nothing():
    logits = np.array([3.0, -1e30, -np.inf, 3.0 - 50, np.finfo(np.float32).min], np.float32)
    assert weights(logits, 3.0, 1.0, 40).tolist() == [2**40, 0, 0, 0, 0]


def test_weights_do_not_depend_on_the_neighbours():
    rng = np.random.default_rng(3)
    logits = (rng.random(20_000) * -40).astype(np.float32)
    whole = weights(logits, 0.0, 0.7, 44)
    for start, stop in ((0, 1), (17, 18), (8191, 8193), (123, 19_999)):
        assert np.array_equal(weights(logits[start:stop], 0.0, 0.7, 44), whole[start:stop])


def test_the_sum_of_a_whole_vocabulary_does_not_overflow():
    for count in (1, 2, 3, 255, 256, VOCAB, 2**20):
        assert count * 2 ** bits_for(count) < 2**63


def test_pick_finds_the_running_sum_at_every_border():
    rng = np.random.default_rng(4)
    weight = rng.integers(0, 3, 20_000)
    ids = np.repeat(np.arange(len(weight)), weight)
    for target in [0, 1, len(ids) - 1, *rng.integers(0, len(ids), 300).tolist()]:
        assert pick(weight, target) == ids[target]
    with pytest.raises(ValueError, match="not below"):
        pick(weight, len(ids))


def test_log_sum_is_correctly_rounded():
    for total, bits in ((2**44, 44), (2**44 + 1, 44), (163_840 << 44, 44), (3, 0)):
        assert log_sum(total, bits) == float(EXACT.ln(EXACT.divide(Decimal(total), Decimal(2**bits))))


def test_random_numbers_are_philox_blocks():
    # known answers published with Random123 (philox4x64, 10 rounds)
    assert random64(0, 0) == 0x16554D9ECA36314C
    everything = 2**256 - 1
    raw = np.random.Philox(key=2**128 - 1, counter=everything - 1).random_raw()
    assert raw == 0x87B092C3013FE90B
    assert random64(2**64 - 1, everything, 2**64 - 1) == raw


def test_seed_place_and_stream_each_change_the_number():
    numbers = {
        random64(seed, place, stream) for seed in range(9) for place in range(9) for stream in range(9)
    }
    assert len(numbers) == 9**3


def test_random_numbers_are_even_over_places_and_seeds():
    for numbers in ([random64(7, i) for i in range(4096)], [random64(i, 7) for i in range(4096)]):
        counts = np.bincount([n >> 58 for n in numbers], minlength=64)
        assert ((counts - 64) ** 2 / 64).sum() < 110  # 63 degrees of freedom: exceeded once in 4000
        ones = sum(n.bit_count() for n in numbers) / (64 * 4096)
        assert abs(ones - 0.5) < 0.004


def digest() -> str:
    """What several samplers choose and report over the full vocabulary, and the weights' bits."""
    rng = np.random.default_rng(2024)
    rows = (rng.random((3, VOCAB)) ** 8 * 30 - 9).astype(np.float32)  # powers by multiplication only
    out = hashlib.sha256()
    for temperature in (0.3, 1.0, 1.7):
        out.update(weights(rows[0], float(rows[0].max()), temperature, bits_for(VOCAB)).tobytes())
    for values in (
        {},
        {"top_k": 50},
        {"top_p": 0.9},
        {"min_p": 0.2},
        {"top_p": 0.7, "top_k": 1000, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    ):
        options = SamplingOptions.of({"temperature": 1.1, "seed": 99, "logprobs": 3, **values})
        sampler = Sampler(options, [1, 2, 3], vocab=VOCAB)
        for n in range(6):
            out.update(str(sampler(rows[n % 3], 2 + n)).encode())
            out.update(repr(sampler.logprobs).encode())
    return out.hexdigest()


GOLDEN = "76308a4fe77fdda5087781d6d5030638a355da0668d3845a50f91f5b5a0d3ab5"


def test_choices_and_reports_are_the_same_bits_on_every_machine():
    assert digest() == GOLDEN


@pytest.mark.parametrize("library", ["", "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4"])
def test_choices_do_not_depend_on_the_vector_units(library):
    found = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
    root = Path(__file__).parents[2]
    env = {
        **os.environ,
        "NPY_DISABLE_CPU_FEATURES": " ".join(found),
        "GLIBC_TUNABLES": library,
        "PYTHONPATH": os.pathsep.join((str(root / "src"), str(Path(__file__).parent))),
    }
    code = "from test_sampling_weights import digest; print(digest())"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == digest(), done.stderr


def test_equal_shares_are_exactly_equal():
    weight = weights(np.zeros(3, np.float32), 0.0, 1.0, 60)
    assert Fraction(int(weight[0]), int(weight.sum())) == Fraction(1, 3)
