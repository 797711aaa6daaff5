"""The choice itself: what may be chosen, how often it is, and what the choice depends on."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimistream.engine import cuts
from kimistream.engine.cuts import largest, nucleus
from kimistream.engine.options import SamplingOptions
from kimistream.engine.sampling import Sampler, candidates
from kimistream.errors import NumberError, UsageError


def exact_shares(logits, options, prompt=(), output=()):
    """Probabilities by id, as exact fractions of 50-digit exponentials: the definition, without shortcuts."""
    x = {i: float(v) for i, v in enumerate(logits)}
    if len(output) < options.min_tokens:
        x.update(dict.fromkeys(options.stop_ids, -math.inf))
    for i, bias in options.logit_bias.items():
        x[i] += bias
    for i in {*prompt, *output}:
        if options.repetition_penalty != 1:
            x[i] = x[i] / options.repetition_penalty if x[i] > 0 else x[i] * options.repetition_penalty
    for i in set(output):
        x[i] -= options.frequency_penalty * output.count(i)
        x[i] -= options.presence_penalty
    order = sorted(x, key=lambda i: (-x[i], i))
    peak = x[order[0]]
    if options.temperature == 0:
        return {order[0]: Fraction(1)}
    share = {
        i: Fraction((Decimal(x[i] - peak) / Decimal(options.temperature)).exp())
        for i in order
        if x[i] > -math.inf
    }
    kept = [i for i in share if share[i] >= Fraction(options.min_p)]
    if options.top_k:
        kept = kept[: options.top_k]
    total, before, inside = sum(share[i] for i in kept), Fraction(0), []
    for i in kept:
        if before < Fraction(options.top_p) * total:
            inside.append(i)
        before += share[i]
    total = sum(share[i] for i in inside)
    return {i: share[i] / total for i in inside}


def shares(logits, options):
    """Probabilities by id as the sampler weighs them."""
    weight, ids = candidates(logits, options)
    total = int(weight.sum())
    ids = range(len(logits)) if ids is None else ids
    return {int(i): Fraction(int(w), total) for i, w in zip(ids, weight, strict=True) if w}


# halves: many equal logits, many shares that meet a border exactly; none too far apart to weigh anything
LOGITS = st.lists(st.integers(-9, 9).map(lambda n: n / 2), min_size=1, max_size=40)


@settings(max_examples=300, deadline=None)
@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.25, 0.5, 1.0, 2.0]),
    top_k=st.integers(0, 42),
    top_p=st.sampled_from([1.0, 0.999, 0.75, 0.5, 0.3, 0.25, 0.1, 1e-9]),
    min_p=st.sampled_from([0.0, 1e-3, 0.1, 0.5, 1.0]),
)
def test_cuts_leave_exactly_what_the_definition_leaves(logits, temperature, top_k, top_p, min_p):
    options = SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    x = np.array(logits, np.float32)
    expected, got = exact_shares(x, options), shares(x, options)
    assert list(got) == sorted(expected)
    assert all(abs(got[i] - expected[i]) < Fraction(1, 10**12) for i in expected)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 40]), st.sampled_from([0.999, 0.9, 0.5, 0.01]))
def test_the_quick_ways_to_a_border_find_it_where_sorting_does(seed, ties, top_p):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30_000))
    weight = rng.integers(0, 2 ** int(rng.integers(1, 40)), n) // ties * ties
    if not weight.any():
        weight[0] = 1
    order = np.argsort(-weight, kind="stable")
    sums = np.cumsum(weight[order])
    count = int(np.searchsorted(sums, math.ceil(Fraction(top_p) * int(sums[-1])))) + 1
    assert np.array_equal(np.flatnonzero(nucleus(weight, top_p)), np.sort(order[:count]))
    k = int(rng.integers(1, n + 1))
    for count in {1, min(k, 50), k}:
        assert np.array_equal(largest(weight.astype(np.float64), count), np.sort(order[:count]))


def test_a_flat_vocabulary_is_cut_without_sorting_it(monkeypatch):
    sizes = []
    sort = np.sort
    monkeypatch.setattr(cuts.np, "sort", lambda a: (sizes.append(len(a)), sort(a))[1])
    weight = np.random.default_rng(5).integers(10**12, 2 * 10**12, 100_000)
    nucleus(weight, 0.5)
    assert max(sizes) <= cuts.SORTED


def chi_square_limit(freedom):
    """Exceeded by chance once in 30,000 (Wilson and Hilferty's approximation at 4 standard deviations)."""
    return freedom * (1 - 2 / (9 * freedom) + 4 * math.sqrt(2 / (9 * freedom))) ** 3


WIDE = np.array([2.0, 1.5, 1.0, 1.0, 0.5, 0.0, 0.0, -0.5, -1.0, -1.5, -2.0, -2.5], np.float32)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 1.0},
        {"temperature": 0.6, "logit_bias": {11: 3.0, 0: -1.0}},
        {"temperature": 1.5, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 2.0, "min_p": 0.3},
        {"temperature": 1.2, "min_p": 0.05, "top_k": 9, "top_p": 0.9},
        {"temperature": 1.0, "stop_ids": [0, 3], "min_tokens": 10**9},
    ],
    ids=str,
)
def test_tokens_are_chosen_as_often_as_their_probabilities_say(values):
    options = SamplingOptions.of({"seed": 11, **values})
    expected = exact_shares(WIDE, options)
    sampler, draws = Sampler(options, [0], vocab=len(WIDE)), 6000
    counts = np.bincount([sampler(WIDE, n) for n in range(draws)], minlength=len(WIDE))
    assert set(np.flatnonzero(counts)) <= set(expected)
    mean = {i: float(share) * draws for i, share in expected.items()}
    statistic = sum((counts[i] - m) ** 2 / m for i, m in mean.items())
    assert statistic < chi_square_limit(len(mean) - 1)
    # the test itself would notice: the same counts do not fit the distribution at another temperature
    other = exact_shares(WIDE, SamplingOptions.of({**values, "temperature": options.temperature * 1.4}))
    if set(other) == set(expected):
        wrong = sum((counts[i] - float(s) * draws) ** 2 / (float(s) * draws) for i, s in other.items())
        assert wrong > chi_square_limit(len(mean) - 1)


def test_one_place_over_many_seeds_is_distributed_the_same():
    logits = WIDE[:6]
    expected = exact_shares(logits, SamplingOptions(temperature=1))
    draws = 4000
    chosen = [
        Sampler(SamplingOptions(temperature=1, seed=seed), [0], vocab=6)(logits, 0) for seed in range(draws)
    ]
    counts = np.bincount(chosen, minlength=6)
    statistic = sum((counts[i] - float(s) * draws) ** 2 / (float(s) * draws) for i, s in expected.items())
    assert statistic < chi_square_limit(5)


@given(LOGITS)
def test_greedy_takes_the_largest_and_of_equal_ones_the_lowest_id(logits):
    x = np.array(logits, np.float32)
    best = min(range(len(logits)), key=lambda i: (-logits[i], i))
    assert Sampler(SamplingOptions(), [0], vocab=len(x))(x, 0) == best


@given(LOGITS, st.integers(0, 2**64 - 1), st.sampled_from([{"top_k": 1}, {"top_p": 1e-300}]))
def test_keeping_one_token_equals_greedy(logits, seed, cut):
    x = np.array(logits, np.float32)
    options = SamplingOptions.of({"temperature": 1.7, "seed": seed, **cut})
    assert Sampler(options, [0], vocab=len(x))(x, 0) == int(np.argmax(x))


def test_top_p_keeps_the_token_that_reaches_it_and_no_more():
    x = np.zeros(4, np.float32)  # four times a quarter
    for top_p, kept in ((1e-9, 1), (0.25, 1), (0.2500001, 2), (0.5, 2), (0.75, 3), (0.7500001, 4), (1, 4)):
        got = shares(x, SamplingOptions(temperature=1, top_p=top_p))
        assert list(got) == list(range(kept)), top_p


def test_min_p_keeps_what_equals_it():
    x = np.array([0, 0, -1], np.float32)
    assert list(shares(x, SamplingOptions(temperature=1, min_p=1))) == [0, 1]
    assert list(shares(x, SamplingOptions(temperature=1, min_p=0.36))) == [0, 1, 2]
    assert list(shares(x, SamplingOptions(temperature=1, min_p=0.37))) == [0, 1]


def test_a_bias_of_100_forces_and_of_minus_100_forbids():
    x = np.array([5, 4, 3, -6], np.float32)
    assert list(shares(x + np.array([0, 0, 0, 100]), SamplingOptions(temperature=1))) == [3]
    forced = Sampler(SamplingOptions(temperature=1, logit_bias={3: 100}, seed=1), [0], vocab=4)
    assert [forced(x, n) for n in range(50)] == [3] * 50
    forbidden = Sampler(SamplingOptions(temperature=1, logit_bias={0: -100}, seed=1), [0], vocab=4)
    assert 0 not in [forbidden(x, n) for n in range(200)]


def test_end_tokens_are_held_off_until_min_tokens():
    x = np.array([1, 9, 5, 8], np.float32)
    sampler = Sampler(
        SamplingOptions(min_tokens=3, stop_ids=[3]), [0], vocab=4, end_ids=frozenset({1, 163_586})
    )
    assert [sampler(x, n) for n in range(5)] == [2, 2, 2, 1, 1]
    everything = Sampler(SamplingOptions(min_tokens=1, stop_ids=[0, 1, 2, 3]), [0], vocab=4)
    with pytest.raises(UsageError, match="min_tokens 1"):
        everything(x, 0)


def test_a_logit_of_minus_infinity_is_never_chosen():
    x = np.array([-np.inf, 0, -np.inf, 0], np.float32)
    for values in ({}, {"top_k": 3}, {"top_p": 0.9}, {"repetition_penalty": 1.5}):
        sampler = Sampler(SamplingOptions.of({"temperature": 3, "seed": 1, **values}), [0], vocab=4)
        assert {sampler(x, n) for n in range(60)} == {1, 3}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_no_token_comes_from_logits_that_are_not_finite(bad, temperature):
    x = np.zeros(9, np.float32)
    x[5] = bad
    sampler = Sampler(SamplingOptions(temperature=temperature), [1, 2], vocab=9)
    with pytest.raises(NumberError, match="after position 1 are not finite"):
        sampler(x, 1)
    with pytest.raises(NumberError):
        sampler(np.full(9, -np.inf, np.float32), 1)
    assert sampler.output == ()


# what the choice depends on


def rows(count, vocab=500, seed=1):
    return (np.random.default_rng(seed).random((count, vocab)) * 6).astype(np.float32)


FULL = SamplingOptions(
    temperature=0.9,
    top_p=0.95,
    top_k=200,
    min_p=0.01,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.4,
    logit_bias={3: 2.0, 8: -100},
    stop_ids=[4],
    min_tokens=5,
    seed=2024,
)


def test_an_answer_resumed_at_any_place_is_the_same_answer():
    logits, prompt = rows(30), [3, 1, 4, 1, 5]
    sampler = Sampler(FULL, prompt, vocab=500)
    whole = [sampler(logits[n], len(prompt) - 1 + n) for n in range(30)]
    assert len(set(whole)) > 15
    for cut in range(31):
        resumed = Sampler(FULL, prompt, whole[:cut], vocab=500)
        assert [resumed(logits[n], len(prompt) - 1 + n) for n in range(cut, 30)] == whole[cut:]


def test_an_answer_taken_back_and_gone_on_with_is_the_same_answer():
    logits = rows(25)
    straight = Sampler(FULL, [7, 7], vocab=500)
    whole = [straight(logits[n], n + 1) for n in range(25)]
    wandering = Sampler(FULL, [7, 7], vocab=500)
    for keep, reach in ((0, 9), (4, 12), (12, 12), (1, 25)):
        wandering.rewind(2 + keep)
        for n in range(keep, reach):
            wandering(logits[n] if reach == 25 else logits[-1 - n], n + 1)
        wandering.rewind(2 + (keep if reach < 25 else 25))
        if reach < 25:
            wandering.rewind(2)
            for n in range(12):
                wandering(logits[n], n + 1)
    assert list(wandering.output) == whole


def test_company_changes_nothing():
    many = [Sampler(FULL, [n, n + 1], vocab=500) for n in range(6)]
    logits = rows(60).reshape(10, 6, 500)
    for step in range(10):
        for n in np.random.default_rng(step).permutation(6):
            many[n](logits[step, n], step + 1)
    for n in range(6):
        alone = Sampler(FULL, [n, n + 1], vocab=500)
        assert tuple(alone(logits[step, n], step + 1) for step in range(10)) == many[n].output


def test_another_seed_stream_or_place_gives_another_answer():
    x = rows(1)[0]

    def answer(seed, stream, start):
        options = SamplingOptions(temperature=1, seed=seed)
        sampler = Sampler(options, [1] * start, vocab=500, stream=stream)
        return tuple(sampler(x, start - 1 + n) for n in range(8))

    assert len({answer(*c) for c in ((1, 0, 1), (2, 0, 1), (1, 1, 1), (1, 0, 9))}) == 4
    assert answer(1, 0, 1) == answer(1, 0, 1)
    # a place, not the number of draws, decides: answers that overlap agree where they do
    assert answer(1, 0, 1)[3:] == answer(1, 0, 4)[:5]


def test_a_drawn_seed_is_reported_and_repeats_the_answer():
    x = rows(1)[0]
    first = Sampler(SamplingOptions(temperature=1), [0], vocab=500)
    again = Sampler(SamplingOptions(temperature=1, seed=first.seed), [0], vocab=500)
    assert first.options.seed == first.seed
    assert [first(x, n) for n in range(20)] == [again(x, n) for n in range(20)]


def test_the_logits_are_left_as_they_came():
    x = rows(1)[0]
    before = x.copy()
    Sampler(FULL, [1, 2], [3], vocab=500)(x, 2)
    assert np.array_equal(x, before)


def test_logits_of_another_place_or_size_are_an_error():
    sampler = Sampler(SamplingOptions(), [1, 2], vocab=500)
    for logits, position in ((rows(1)[0], 0), (rows(1)[0], 2), (rows(1, 499)[0], 1)):
        with pytest.raises(ValueError, match="are next"):
            sampler(logits, position)
    with pytest.raises(ValueError, match="rewind to 1"):
        sampler.rewind(1)


def test_options_with_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(UsageError, match="outside the vocabulary of 500"):
        Sampler(SamplingOptions(logit_bias={500: 1}), [0], vocab=500)
