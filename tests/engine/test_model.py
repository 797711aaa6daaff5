"""An open model: what it refuses, how it is interrupted, and that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import kimistream
from kimistream.engine.generate import prefill
from kimistream.engine.model import Model
from kimistream.engine.records import Cost
from kimistream.errors import BudgetError, UsageError

TINY = Path(__file__).parents[1] / "data" / "tiny-k3"


def tokens(model: Model, n: int = 5, **options) -> list[int]:
    return [r.id for r in model.generate([5, 6, 7], max_tokens=n, ignore_eos=True, **options)]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_the_public_door_opens_and_generates():
    with kimistream.open(str(TINY), memory="2GB", context=32) as model:
        records = list(model.generate([5, 6, 7], max_tokens=3, ignore_eos=True))
    assert [r.position for r in records] == [3, 4, 5]
    assert records[0].cost.nbytes > 0
    assert records[0].cost.seconds > 0


def test_closing_ends_every_thread_and_descriptor():
    tokens_first = None
    for _ in range(3):
        threads, descriptors = threading.active_count(), open_descriptors()
        with Model.open(TINY, memory="2GB", context=32) as model:
            assert threading.active_count() > threads
            got = tokens(model)
            tokens_first = tokens_first or got
            assert got == tokens_first
        assert threading.active_count() == threads
        assert open_descriptors() == descriptors


def test_a_refused_budget_leaves_nothing_open_and_tells_the_least():
    threads, descriptors = threading.active_count(), open_descriptors()
    with pytest.raises(BudgetError) as caught:
        Model.open(TINY, memory="30MB", context=32)
    assert caught.value.least_bytes > 30e6
    assert threading.active_count() == threads
    assert open_descriptors() == descriptors


def test_the_context_is_a_limit_that_is_told():
    with Model.open(TINY, memory="2GB", context=6) as model:
        assert len(tokens(model, 4)) == 4
        with pytest.raises(UsageError, match="6 positions"):
            tokens(model, 5)


@pytest.mark.parametrize("at", [0, 3, 12, 13])
def test_an_interrupt_in_the_middle_of_a_pass_leaves_the_model_usable(at):
    with Model.open(TINY, memory="2GB", context=32) as model:
        want = tokens(model)

        def stop(layer: int, layers: int) -> None:
            if layer == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            list(model.generate([9, 8, 7, 6], max_tokens=3, progress=lambda done, rows: stop))
        assert tokens(model) == want


def test_a_state_carries_on_where_it_was():
    with Model.open(TINY, memory="2GB", context=64) as model:
        ids = np.arange(20, dtype=np.int32)
        whole = prefill(model.forward, model.new_state(), ids, chunk=20)
        state = model.new_state()
        prefill(model.forward, state, ids[:11], chunk=4)
        assert state.position == 11
        parts = prefill(model.forward, state, ids[11:], chunk=4)
        assert np.array_equal(whole.view(np.uint32), parts.view(np.uint32))


def test_what_tokens_cost_adds_up_to_what_the_reader_counted():
    with Model.open(TINY, memory="2GB", context=32) as model:
        before = model.reader.counters().total_bytes
        costs = [r.cost for r in model.generate([5, 6, 7], max_tokens=4, ignore_eos=True)]
        whole = sum(costs, Cost())
        assert whole.nbytes == model.reader.counters().total_bytes - before
        assert whole.experts_read > 0


def test_ctrl_c_ends_a_run_with_code_130_within_two_seconds():
    command = [sys.executable, "-m", "kimistream", "run", str(TINY), "--ids", "1,2", "-n", "4000"]
    command += ["--memory", "2GB", "--ignore-eos", "--context", "5000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.read(8)  # the first tokens are out
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert time.monotonic() - started < 2
    assert "Traceback" not in err
    assert "interrupted" in err
