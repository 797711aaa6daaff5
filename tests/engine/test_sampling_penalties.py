"""Penalties against a slow reference, and the log probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimistream.engine.logprobs import TokenLogprobs, token_logprobs
from kimistream.engine.options import SamplingOptions
from kimistream.engine.penalties import Penalties
from kimistream.engine.sampling import Sampler

IDS = st.lists(st.integers(0, 199), max_size=150)


def slow(logits, options, prompt, output):
    x = [float(v) for v in logits]
    for i in range(len(x)):
        if i in prompt or i in output:
            r = options.repetition_penalty
            x[i] = x[i] / r if x[i] > 0 else x[i] * r
        x[i] -= options.frequency_penalty * output.count(i)
        x[i] -= options.presence_penalty if i in output else 0
    return x


@settings(max_examples=150, deadline=None)
@given(
    prompt=IDS,
    output=IDS,
    taken_back=st.integers(0, 150),
    repetition=st.sampled_from([1.0, 0.7, 1.3]),
    presence=st.sampled_from([0.0, 0.5, -2.0]),
    frequency=st.sampled_from([0.0, 0.3, -0.1]),
)
def test_penalties_equal_the_slow_reference(prompt, output, taken_back, repetition, presence, frequency):
    options = SamplingOptions(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
    )
    logits = (np.random.default_rng(len(prompt)).random(200) * 8 - 4).astype(np.float32)
    penalties = Penalties(options, prompt)
    for token in output:
        penalties.add(token)
    for _ in range(min(taken_back, len(output))):
        penalties.remove(output.pop())
    x = logits.astype(np.float64)
    penalties.apply(x)
    assert x.tolist() == slow(logits, options, prompt, output)


def test_repetition_counts_the_prompt_and_the_others_do_not():
    x = np.array([2.0, 1.9, -2.0, -2.1], np.float32)

    def first(prompt, output, **values):
        place = len(prompt) + len(output) - 1
        return Sampler(SamplingOptions(**values), prompt, output, vocab=4)(x, place)

    assert first([0], [], repetition_penalty=1.5) == 1
    assert first([0], [], presence_penalty=2, frequency_penalty=2) == 0
    assert first([0], [0], presence_penalty=0.2) == 1
    # a presence counts once, a frequency every time
    assert first([3], [0, 0, 1], presence_penalty=0.2) == 0
    assert first([3], [0, 0, 1], frequency_penalty=0.2) == 1
    # a negative logit is multiplied, not divided
    both = SamplingOptions(repetition_penalty=2, logit_bias={0: -100, 1: -100})
    assert Sampler(both, [2], vocab=4)(x, 0) == 3


def test_bias_comes_before_the_penalties():
    # (1 + 5) / 2 = 3 is below 3.5; 1 / 2 + 5 would be above
    options = SamplingOptions(repetition_penalty=2, logit_bias={0: 5})
    assert Sampler(options, [0], vocab=2)(np.array([1, 3.5], np.float32), 0) == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3000), st.integers(0, 20))
def test_log_probabilities_are_those_of_the_raw_logits(seed, vocab, count):
    rng = np.random.default_rng(seed)
    x = np.round(rng.normal(0, 6, vocab) * 8).astype(np.float32) / 8
    token = int(rng.integers(vocab))
    report = token_logprobs(x, token, count)
    norm = math.log(math.fsum(math.exp(v) for v in x.tolist()))
    order = sorted(range(vocab), key=lambda i: (-x[i], i))
    assert report.id == token
    assert report.rank == order.index(token) + 1
    assert [i for i, _ in report.top] == order[:count]
    for i, logprob in (*report.top, (token, report.logprob)):
        assert logprob == pytest.approx(float(x[i]) - norm, abs=1e-7)


def test_log_probabilities_of_the_full_vocabulary_sum_to_one():
    x = (np.random.default_rng(8).random(163_840) * 25).astype(np.float32)
    norm = token_logprobs(x, 0, 0).logprob - float(x[0])
    assert math.fsum(np.exp(x.astype(np.float64) + norm)) == pytest.approx(1, abs=1e-8)


def test_a_certain_token_has_log_probability_zero_and_an_impossible_one_minus_infinity():
    x = np.array([0, 1000, -np.inf], np.float32)
    assert token_logprobs(x, 1, 1) == TokenLogprobs(1, 0.0, 1, ((1, 0.0),))
    assert token_logprobs(x, 2, 0) == TokenLogprobs(2, -math.inf, 3)
    assert token_logprobs(x, 0, 0).logprob == -1000


def test_reports_ignore_the_options_that_change_the_choice():
    x = np.array([1, 2, 3, 0.5], np.float32)
    options = SamplingOptions(
        temperature=0.3, top_k=1, logit_bias={3: 100}, repetition_penalty=1.5, seed=1, logprobs=2
    )
    sampler = Sampler(options, [2, 2], vocab=4)
    assert sampler.logprobs is None
    assert sampler(x, 1) == 3
    assert sampler.logprobs == token_logprobs(x, 3, 2)
    assert sampler.logprobs.rank == 4
    assert [i for i, _ in sampler.logprobs.top] == [2, 1]


def test_no_report_is_made_unless_asked_for():
    sampler = Sampler(SamplingOptions(), [0], vocab=4)
    sampler(np.zeros(4, np.float32), 0)
    assert sampler.logprobs is None
    sampler = Sampler(SamplingOptions(logprobs=0), [0], vocab=4)
    sampler(np.zeros(4, np.float32), 0)
    assert sampler.logprobs == TokenLogprobs(0, sampler.logprobs.logprob, 1)
    assert sampler.logprobs.logprob == pytest.approx(-math.log(4), abs=1e-15)
