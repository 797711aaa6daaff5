"""Reading ahead of the router: guesses are made and often right, and never change a bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kimistream.engine.model import Model
from kimistream.engine.sizes import Tuning
from kimistream.model.rows import Run

TINY = Path(__file__).parents[1] / "data" / "tiny-k3"


def decode(model: Model, steps: int) -> np.ndarray:
    """The logits of some decode steps of one sequence."""
    state, token, rows = model.new_state(), 7, []
    for _ in range(steps):
        rows.append(model.forward.run([Run(state, np.array([token], np.int32), "last")])[-1])
        token = int(np.argmax(rows[-1]))
    return np.array(rows)


def test_guesses_are_made_beside_a_resident_tape_and_change_no_bit():
    with Model.open(TINY, memory="2GB", context=64, tuning=Tuning(slots=6)) as model:
        assert model.experts.guesses == 0
        plain = decode(model, 24)
    with Model.open(TINY, memory="2GB", context=64, tuning=Tuning(slots=60)) as model:
        assert model.experts.guesses > 0
        guessing = decode(model, 24)
        counters = model.experts.counters
        assert counters.guessed > 0
        assert counters.guessed_right > 0
    assert np.array_equal(plain.view(np.uint32), guessing.view(np.uint32))


def test_no_guess_is_made_where_the_next_router_is_not_resident():
    with Model.open(
        TINY, memory="2GB", context=64, tuning=Tuning(slots=60, pin=False, block_bytes=65536)
    ) as model:
        decode(model, 6)
        assert model.experts.counters.guessed == 0
