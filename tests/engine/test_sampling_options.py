"""Each option takes its whole range and refuses the rest by name, with an example that works."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

from kimistream.engine.options import NUMBERS, SamplingOptions
from kimistream.errors import UsageError

EDGES = {
    "temperature": [0, 0.0, 1e-5, 1, 100],
    "top_p": [1e-300, 0.5, 1, 1.0],
    "top_k": [-1, 0, 1, 2**31 - 1],
    "min_p": [0, 0.5, 1],
    "repetition_penalty": [1e-3, 1, 100],
    "presence_penalty": [-2, 0, 2],
    "frequency_penalty": [-2.0, 2.0],
    "seed": [0, 2**64 - 1, None],
    "max_tokens": [1, 10**9, None],
    "min_tokens": [0, 10**9],
    "logprobs": [0, 20, None],
    "logit_bias": [{}, {0: -100}, {5: 100.0}],
    "stop": [(), "x", ["a", "bc"], ("\n\n",)],
    "include_stop": [True, False],
    "stop_ids": [(), [0, 7], {3}],
}
BEYOND = {
    "temperature": [-0.1, 1e-6, 100.1, float("nan"), float("inf"), "abc", "1", True, [1]],
    "top_p": [0, -0.1, 1.0000001, float("nan"), "0.9", False],
    "top_k": [-2, 0.5, 1.0, 2**31, "40"],
    "min_p": [-0.01, 1.01, float("nan"), "x"],
    "repetition_penalty": [0, -1, 100.5, float("inf")],
    "presence_penalty": [-2.1, 2.1, float("nan")],
    "frequency_penalty": [-2.1, 2.1, "0"],
    "seed": [-1, 2**64, 1.5, "7", True],
    "max_tokens": [0, -1, 1.5, "abc"],
    "min_tokens": [-1, 0.5, "abc"],
    "logprobs": [-1, 21, True, "5"],
    "logit_bias": [[1], "1008:5", {-1: 1}, {"7": 1}, {7: 100.5}, {7: "x"}, {7: float("nan")}, {True: 1}],
    "stop": ["", ["a", ""], [1], 5],
    "include_stop": [1, "true"],
    "stop_ids": ["163586", 5, [-1], [1.5], [True]],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in EDGES.items() for v in values], ids=repr)
def test_the_edges_of_a_range_are_taken(name, value):
    SamplingOptions(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in BEYOND.items() for v in values], ids=repr
)
def test_a_value_beyond_is_refused_with_option_value_and_range(name, value):
    with pytest.raises(UsageError) as caught:
        SamplingOptions(**{name: value})
    what = caught.value.what
    assert what.startswith(name), what
    assert ": must be " in what
    if not isinstance(value, list | dict):
        assert f" {value!r}: " in what
    assert caught.value.remedy
    assert caught.value.exit_code == 2


def test_every_option_has_its_edges_tested():
    names = set(SamplingOptions.__dataclass_fields__)
    assert names == set(EDGES) == set(BEYOND)


@pytest.mark.parametrize("name", NUMBERS)
def test_the_example_in_a_refusal_is_itself_taken(name):
    with pytest.raises(UsageError) as caught:
        SamplingOptions(**{name: "abc"})
    example = re.search(rf"{name} (\S+)\.$", caught.value.remedy)[1]
    SamplingOptions(**{name: float(example) if "." in example else int(example)})


def test_the_message_reads_like_this():
    with pytest.raises(UsageError) as caught:
        SamplingOptions.of({"top_p": 1.5}, lambda name: "--" + name.replace("_", "-"))
    assert str(caught.value) == ("--top-p 1.5: must be a number, above 0, up to 1\nFor example --top-p 0.95.")


def test_a_spelling_is_used_in_every_message():
    def spell(name):
        return f"<{name}>"

    for name, values in BEYOND.items():
        for value in values:
            with pytest.raises(UsageError, match=f"^<{name}>"):
                SamplingOptions.of({name: value}, spell)
    with pytest.raises(UsageError, match=r"^<min_tokens> 5 is more than <max_tokens> 4"):
        SamplingOptions.of({"min_tokens": 5, "max_tokens": 4}, spell)
    with pytest.raises(UsageError, match=r"^<top_q> is not"):
        SamplingOptions.of({"top_q": 5}, spell)


def test_none_stands_for_the_default():
    assert SamplingOptions.of({"temperature": None, "top_k": None, "stop": None}) == SamplingOptions()


def test_min_tokens_may_equal_max_tokens_but_not_exceed_it():
    SamplingOptions(min_tokens=4, max_tokens=4)
    with pytest.raises(UsageError, match="min_tokens 5 is more than max_tokens 4"):
        SamplingOptions(min_tokens=5, max_tokens=4)


def test_values_come_out_in_their_own_types():
    options = SamplingOptions(
        temperature=np.float32(1),
        top_k=np.int64(-1),
        logit_bias={np.int32(9): 1, 2: 3},
        stop="x",
        stop_ids=[4],
    )
    assert type(options.temperature) is float
    assert type(options.top_k) is int
    assert options.top_k == 0
    assert list(options.logit_bias.items()) == [(2, 3.0), (9, 1.0)]
    assert options.stop == ("x",)
    assert options.stop_ids == frozenset({4})


def test_options_cannot_be_changed_and_can_be_copied_hashed_and_pickled():
    given = {3: 1.0}
    options = SamplingOptions(logit_bias=given, temperature=0.5)
    given[3] = 50.0
    assert options.logit_bias == {3: 1.0}
    with pytest.raises(AttributeError):
        options.temperature = 2.0
    assert hash(options) == hash(SamplingOptions(logit_bias={3: 1.0}, temperature=0.5))
    assert pickle.loads(pickle.dumps(options)) == options


def test_ids_outside_the_vocabulary_are_refused_by_name():
    SamplingOptions(logit_bias={9: 1}, stop_ids=[9]).check_vocabulary(10)
    with pytest.raises(UsageError, match=r"logit_bias: token id 10 is outside the vocabulary of 10"):
        SamplingOptions(logit_bias={10: 1}).check_vocabulary(10)
    with pytest.raises(UsageError, match=r"stop_ids: token id 11 is outside the vocabulary of 10"):
        SamplingOptions(stop_ids=[11]).check_vocabulary(10)


def test_a_seed_is_drawn_only_where_none_is_given():
    assert SamplingOptions(seed=0).with_seed().seed == 0
    drawn = {SamplingOptions().with_seed().seed for _ in range(20)}
    assert len(drawn) > 15
    assert all(0 <= seed < 2**32 for seed in drawn)
