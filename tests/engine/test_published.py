"""verify --golden: the comparison itself, on the tiny model with a table of its own; the real table's shape."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from kimistream.checkpoint.config import load_config
from kimistream.cli.app import run_app
from kimistream.engine import golden
from kimistream.engine.golden import RELEASED, GoldenResult, Published, refuse_another_model, run_golden
from kimistream.errors import ConfigError

DATA = Path(__file__).parents[1] / "data"
TINY = DATA / "tiny-k3"
MEMORY = "1GB"


@pytest.fixture(scope="module")
def published() -> Published:
    """A table like the released one, from the reference results of the tiny model."""
    known = load_file(DATA / "tiny-k3.golden.safetensors")
    logits = known["p32.logits"][-1]
    ids = {*np.argsort(-logits)[:5].tolist(), *range(0, 512, 37)}
    return Published(
        prompt=tuple(known["p5.ids"].tolist()),
        continuation=tuple(known["p5.greedy"][:6].tolist()),
        logits_prompt=tuple(known["p32.ids"].tolist()),
        argmax=int(np.argmax(logits)),
        logits={i: float(logits[i]) for i in sorted(ids)},
        tolerance=1e-3,
    )


@pytest.fixture(scope="module")
def result(published) -> GoldenResult:
    return run_golden(TINY, memory=MEMORY, published=published)


def test_the_reference_results_are_met(result):
    assert result.same
    assert 0 < result.worst < 1e-3
    assert "with the published 6 tokens" in result.lines()[0]


def test_a_wrong_token_or_logit_is_told_with_both_numbers(result):
    other = replace(result, expected_ids=(*result.expected_ids[:3], 7, *result.expected_ids[4:]))
    assert not other.same
    assert f"token 4 after the published prompt is {result.ids[3]}, published: 7" in other.lines()[0]
    assert not replace(result, worst=2e-3).same
    assert not replace(result, expected_argmax=result.argmax + 1).same


def test_a_changed_weight_is_noticed(published, tmp_path):
    """One number of the last norm, doubled."""
    import shutil

    tiny = shutil.copytree(TINY, tmp_path / "tiny")
    for path in sorted(tiny.glob("*.safetensors")):
        raw = bytearray(path.read_bytes())
        length = int.from_bytes(raw[:8], "little")
        entry = json.loads(raw[8 : 8 + length]).get("language_model.model.norm.weight")
        if entry is not None:
            at = 8 + length + entry["data_offsets"][0]
            raw[at : at + 320] = (np.frombuffer(raw[at : at + 320], np.uint16) ^ 0x0080).tobytes()
            path.write_bytes(raw)
    assert not run_golden(tiny, memory=MEMORY, published=published).same


def test_the_published_table_is_that_of_the_released_shape():
    config = golden.released_config()
    assert (config.num_layers, config.vocab_size, config.moe.num_experts) == (93, 163840, 896)
    assert max((*RELEASED.prompt, *RELEASED.continuation, *RELEASED.logits)) < config.vocab_size
    assert max(RELEASED.logits, key=lambda i: RELEASED.logits[i]) == RELEASED.argmax == 2494
    assert RELEASED.logits[2494] == pytest.approx(15.02195, abs=5e-6)


def test_another_model_is_refused_with_the_sizes_that_differ(capsys):
    refuse_another_model(golden.released_config(), Path("x"))
    with pytest.raises(ConfigError, match="hidden_size is 160, released: 7168") as info:
        refuse_another_model(load_config(TINY), TINY)
    assert "--deep" in info.value.remedy
    assert run_app(["verify", str(TINY), "--golden"]) == 1
    assert "is not the released Kimi K3" in capsys.readouterr().err


def test_the_command_reports_and_fails_when_the_results_differ(published, capsys, monkeypatch):
    monkeypatch.setattr(golden, "refuse_another_model", lambda *_: None)
    monkeypatch.setattr(golden, "RELEASED", published)
    monkeypatch.setattr(
        golden.run_golden, "__kwdefaults__", {**golden.run_golden.__kwdefaults__, "published": published}
    )
    assert run_app(["verify", str(TINY), "--golden", "--memory", MEMORY, "-q", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["golden"]["same"] is True
    wrong = replace(published, tolerance=1e-12)
    monkeypatch.setattr(
        golden.run_golden, "__kwdefaults__", {**golden.run_golden.__kwdefaults__, "published": wrong}
    )
    assert run_app(["verify", str(TINY), "--golden", "--memory", MEMORY, "-q"]) == 1
    assert "the published results are not met" in capsys.readouterr().err
