"""The engine against the results of the model authors' own code, operation by operation and end to end.

Tolerances and tensor meanings: tests/data/GOLDEN.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from kimistream.engine.model import Model
from kimistream.model.forward import Taps
from kimistream.model.rows import Run

DATA = Path(__file__).parents[1] / "data"
LOGITS = {"tiny-k3": (5e-4, 5e-5), "kimi-linear-tiny": (1.5e-4, 2e-5)}
PROMPTS = ("p1", "p5", "p32", "p130")
NAMES = ("tiny-k3", "kimi-linear-tiny")


def close(got: np.ndarray, want: np.ndarray, atol: float, rms: float) -> None:
    difference = got.astype(np.float64) - want
    assert np.abs(difference).max() <= atol
    assert np.sqrt(np.mean(difference**2)) <= rms


@pytest.fixture(scope="module", params=NAMES)
def golden(request):
    name = request.param
    with Model.open(DATA / name, memory="1GB", context=200, chunk=160) as model:
        yield name, model, load_file(DATA / f"{name}.golden.safetensors")


@pytest.mark.parametrize("prompt", PROMPTS)
def test_all_logits_agree_when_the_prompt_goes_through_in_one_pass(golden, prompt):
    name, model, want = golden
    run = Run(model.new_state(), want[f"{prompt}.ids"], "all")
    close(model.forward.run([run]), want[f"{prompt}.logits"], *LOGITS[name])


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_are_the_same_when_decoded_one_by_one(golden, prompt):
    _, model, want = golden
    rows = []
    records = model.generate(
        want[f"{prompt}.ids"], max_tokens=32, ignore_eos=True, sink=lambda logits: rows.extend(logits)
    )
    assert [r.id for r in records] == want[f"{prompt}.greedy"].tolist()
    first = len(want[f"{prompt}.ids"]) - 1
    close(np.array(rows[first : first + 32]), want[f"{prompt}.greedy_logits"], 1e-3, 1e-4)


@pytest.mark.parametrize("prompt", ["p5", "p32"])
def test_greedy_tokens_are_the_same_when_everything_is_recomputed(golden, prompt):
    _, model, want = golden
    ids = want[f"{prompt}.ids"].tolist()
    for token in want[f"{prompt}.greedy"][:12]:
        logits = model.forward.run([Run(model.new_state(), np.array(ids, np.int32), "last")])
        assert int(np.argmax(logits[-1])) == token
        ids.append(int(token))


def test_every_layer_agrees(golden):
    _, model, want = golden
    taps, state = Taps(), model.new_state()
    model.forward.run([Run(state, want["p32.ids"], "all")], taps=taps)
    for name in ("attn_out", "ffn_out", "layer_out"):
        close(np.array(getattr(taps, name)), want[f"p32.{name}"], 2e-4, 2e-5)
    close(taps.final, want["p32.final_norm"], 2e-4, 2e-5)
    assert np.array_equal(np.array(taps.routed), want["p32.router_ids"])
    assert np.abs(np.array(taps.expert_weights) - want["p32.router_weights"]).max() <= 2e-5


def test_the_state_after_a_prompt_agrees(golden):
    _, model, want = golden
    state = model.new_state()
    model.forward.run([Run(state, want["p32.ids"], "none")])
    close(state.kda, want["p32.kda_state"].swapaxes(-1, -2), 2e-4, 2e-5)
    tails = want["p32.conv_state"][..., 1:].swapaxes(-1, -2)
    close(state.tails, tails, 2e-4, 2e-5)
