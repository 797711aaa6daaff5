"""The float32 functions against float64, over every exponent there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kimistream.kernels import exp as module

Array = np.ndarray[Any, Any]


def softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1 + e)


REFERENCE: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "softplus": softplus,
}
FUNCTIONS = {name: getattr(module, name) for name in REFERENCE}


def stated_bound(name: str) -> float:
    found = re.search(rf"^{name} +([0-9.]+) ", module.__doc__ or "", re.MULTILINE)
    assert found, f"the docstring states no bound for {name}"
    return float(found[1])


def arguments() -> Array:
    """Every sign and exponent with 3000 significands, and many numbers where the functions bend."""
    rng = np.random.default_rng(20)
    heads = np.arange(512, dtype=np.uint32) << 23
    tails = np.concatenate([[0, 1, 2, 2**23 - 1], rng.integers(0, 2**23, 2996)]).astype(np.uint32)
    every = (heads[:, None] | tails[None, :]).reshape(-1).view(np.float32)
    parts = [
        every[np.isfinite(every)],
        rng.uniform(-110, 110, 1_000_000),
        rng.uniform(-2, 2, 500_000),
        np.linspace(0.6, 0.65, 100_000),  # where tanh changes its formula
        np.linspace(-104.5, -86.5, 200_000),  # results that are subnormal
        np.linspace(88.6, 88.8, 20_000),  # where exp overflows
    ]
    return np.concatenate([p.astype(np.float32) for p in parts])


def units(got: Array, want: Array) -> Array:
    """The error in units in the last place of the exact result."""
    exponent = np.frexp(want)[1] - 1
    with np.errstate(invalid="ignore"):
        return np.abs(got.astype(np.float64) - want) / np.ldexp(1.0, np.maximum(exponent, -126) - 23)


@pytest.fixture(scope="module")
def xs() -> Array:
    return arguments()


@pytest.mark.parametrize("name", REFERENCE)
def test_the_error_stays_within_the_stated_bound_on_every_exponent(name: str, xs: Array) -> None:
    got = FUNCTIONS[name](xs)
    with np.errstate(over="ignore", under="ignore"):
        want = REFERENCE[name](xs.astype(np.float64))
    fits = np.abs(want) < 2.0**128 * (1 - 2.0**-25)
    assert np.all(np.isposinf(got[~fits]))
    assert np.all(np.isfinite(got[fits]))
    error = units(got[fits], want[fits])
    worst = int(error.argmax())
    assert error[worst] <= stated_bound(name), (xs[fits][worst], got[fits][worst], want[fits][worst])


def test_infinities_zeros_and_nan_give_their_limits() -> None:
    x = np.array([-np.inf, np.inf, -0.0, 0.0, np.nan, -np.nan], np.float32)
    expected = {
        "exp": [0, np.inf, 1, 1, np.nan, np.nan],
        "sigmoid": [0, 1, 0.5, 0.5, np.nan, np.nan],
        "tanh": [-1, 1, -0.0, 0, np.nan, np.nan],
        "softplus": [0, np.inf, np.log(np.float32(2)), np.log(np.float32(2)), np.nan, np.nan],
    }
    for name, want in expected.items():
        got = FUNCTIONS[name](x)
        np.testing.assert_array_equal(got, np.array(want, np.float32), err_msg=name)
    assert np.signbit(FUNCTIONS["tanh"](x)[2])


def test_tiny_arguments_of_tanh_come_back_unchanged() -> None:
    x = np.float32(10.0) ** np.arange(-44, -4, dtype=np.float32)
    np.testing.assert_array_equal(module.tanh(np.concatenate([x, -x])), np.concatenate([x, -x]))


def test_sigmoid_and_softplus_of_very_negative_numbers_are_exp_and_not_zero() -> None:
    x = np.linspace(-103, -20, 999, dtype=np.float32)
    assert np.all(module.sigmoid(x) > 0)
    for name in ("sigmoid", "softplus"):
        assert units(FUNCTIONS[name](x), np.exp(x.astype(np.float64))).max() <= stated_bound(name)


@pytest.mark.parametrize("name", REFERENCE)
def test_a_result_does_not_depend_on_its_place_or_on_the_length(name: str) -> None:
    x = np.random.default_rng(3).normal(0, 20, 70).astype(np.float32)
    whole = FUNCTIONS[name](x).view(np.uint32)
    for n in [*range(1, 36), 47, 48, 63, 64, 70]:
        for start in (0, 1, 5):
            got = FUNCTIONS[name](x[start : start + n])
            np.testing.assert_array_equal(got.view(np.uint32), whole[start : start + n])


def test_nothing_is_written_behind_the_end() -> None:
    room = np.full(40, 7, np.float32)
    module.exp(np.zeros(21, np.float32), room[3:24])
    assert np.all(room[:3] == 7)
    assert np.all(room[24:] == 7)
    assert np.all(room[3:24] == 1)
