"""The embedded model: a trained checkpoint in the released layout, and the engine computes what was trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from training.corpus import Corpus
from training.evaluate import answer_all
from training.questions import Question

from kimistream.checkpoint.formats import WeightFormat
from kimistream.checkpoint.table import Checkpoint
from kimistream.demo import path as demo_path
from kimistream.engine.model import Model
from kimistream.model.rows import Run
from kimistream.text.tokenizer import Tokenizer

STORED = Path(__file__).resolve().parents[1] / "data" / "demo_logits.npz"


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model.open(demo_path(), memory="2GB", context=1024, chunk=512, sequences=32) as model:
        yield model


@pytest.fixture(scope="module")
def corpus(model: Model) -> Corpus:
    return Corpus(Tokenizer.from_directory(demo_path(), model.config.vocab_size))


def test_every_mechanism_is_there_in_at_most_12_megabytes() -> None:
    assert sum(file.stat().st_size for file in demo_path().iterdir()) <= 12_000_000
    checkpoint = Checkpoint.open(demo_path())
    config = checkpoint.config
    assert config.nested
    assert config.num_layers >= 12
    assert config.attn_res_block_size is not None
    assert len(range(0, config.num_layers, config.attn_res_block_size)) >= 3
    assert set(config.layer_kinds) == {"kda", "mla"}
    assert config.ffn_kinds[0] == "dense"
    assert (config.moe.num_experts, config.moe.top_k) == (16, 4)
    assert config.moe.latent_size is not None
    assert config.moe.latent_norm
    assert config.moe.num_shared_experts == 2
    assert config.mla.q_lora_rank is not None
    assert config.mla.output_gate
    assert config.kda.full_rank_gate
    assert config.kda.gate_lower_bound == -5.0
    assert config.activation == "situ"
    assert checkpoint.experts(1).format is WeightFormat.MXFP4
    assert all(checkpoint.experts(layer).contiguous.all() for layer in config.moe_layers)


def test_the_engine_computes_what_was_trained(model: Model) -> None:
    stored = np.load(STORED)
    ends = np.cumsum(stored["lengths"])
    assert len(ends) == 20
    for end, length, wanted in zip(ends, stored["lengths"], stored["logits"], strict=True):
        ids = stored["ids"][end - length : end]
        logits = model.forward.run([Run(model.new_state(), ids)])[-1]
        error = np.abs(logits - wanted)
        assert error.max() < 5e-4
        assert np.sqrt(np.mean(error**2)) < 5e-5


def _answers(model: Model, corpus: Corpus, questions: list[Question]) -> list[str]:
    stops = frozenset({corpus.tokenizer.special["[EOS]"], corpus.tokenizer.special["<|end_of_msg|>"]})
    found = answer_all(model, [question.prompt for question in questions], stops, 80)
    return [corpus.tokenizer.decode(ids) for ids in found]


def test_the_capital_of_france_is_paris(model: Model, corpus: Corpus) -> None:
    ids = corpus.tokenizer.encode("The capital of France is")
    records = list(model.generate(ids, max_tokens=8))
    assert corpus.tokenizer.decode([record.id for record in records]).startswith(" Paris.")
