"""A sampler in a model: generate asks it in its own order, and an answer can be gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from kimistream.engine.model import Model
from kimistream.engine.options import SamplingOptions
from kimistream.engine.sampling import Sampler

TINY = Path(__file__).parents[1] / "data" / "tiny-k3"
PROMPT = [5, 6, 7]
OPTIONS = SamplingOptions(temperature=1.5, top_p=0.98, repetition_penalty=1.1, frequency_penalty=0.1, seed=3)


def answer(model: Model, sampler: Sampler, so_far: list[int], count: int) -> list[int]:
    prompt = [*PROMPT, *so_far]
    return [r.id for r in model.generate(prompt, max_tokens=count, ignore_eos=True, choose=sampler)]


@pytest.fixture(scope="module")
def model():
    with Model.open(TINY, memory="2GB", context=64) as opened:
        yield opened


def test_an_answer_sampled_from_a_model_is_resumed_from_its_ids_alone(model):
    vocab = model.config.vocab_size
    sampler = Sampler(OPTIONS, PROMPT, vocab=vocab)
    whole = answer(model, sampler, [], 12)
    assert sampler.output == tuple(whole)
    assert len(set(whole)) > 4
    for cut in (1, 7):
        resumed = Sampler(OPTIONS, PROMPT, whole[:cut], vocab=vocab)
        assert answer(model, resumed, whole[:cut], 12 - cut) == whole[cut:]


def test_temperature_zero_is_what_generate_does_without_a_sampler(model):
    greedy = [r.id for r in model.generate(PROMPT, max_tokens=6, ignore_eos=True)]
    sampler = Sampler(SamplingOptions(), PROMPT, vocab=model.config.vocab_size)
    assert answer(model, sampler, [], 6) == greedy
