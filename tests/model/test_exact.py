"""One digest of all logits, whatever the memory, blocks, threads, chunks and company.

The least budget streams everything through a small ring; the largest keeps everything.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kimistream.checkpoint.table import Checkpoint
from kimistream.engine.model import Model
from kimistream.engine.sizes import Tuning
from kimistream.model.rows import Run

DATA = Path(__file__).parents[1] / "data"
NAMES = ("tiny-k3", "kimi-linear-tiny")
IDS = np.random.default_rng(11).integers(0, 380, 33).astype(np.int32)
STEPS = 3


def digest(logits: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(logits, np.float32).tobytes()).hexdigest()


def all_logits(model: Model, chunk: int, company: bool = False) -> np.ndarray:
    """The logits after every prompt position and after three greedy steps."""
    state, rows = model.new_state(), []
    other = model.new_state() if company else None
    for start in range(0, len(IDS), chunk):
        runs = [Run(state, IDS[start : start + chunk], "all")]
        if other is not None and start % 2 == 0:
            runs.insert(0, Run(other, IDS[::-1][start : start + chunk].copy(), "none"))
        rows.append(model.forward.run(runs))
    for _ in range(STEPS):
        token = np.array([np.argmax(rows[-1][-1])], np.int32)
        rows.append(model.forward.run([Run(state, token, "last")]))
    return np.concatenate(rows)


def run_with(
    name: str,
    *,
    chunk: int = 33,
    company: bool = False,
    memory: str | int = "2GB",
    threads: int | None = None,
    **tuning,
) -> str:
    options = {"context": 64, "chunk": max(2 * chunk, 2), "memory": memory, "threads": threads}
    with Model.open(DATA / name, tuning=Tuning(**tuning), **options) as model:
        return digest(all_logits(model, chunk, company))


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    return {name: run_with(name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 1.0])
def test_the_memory_budget_does_not_change_a_bit(reference, name, share):
    """From next to the least, where all streams through a ring of two blocks, to everything resident."""
    checkpoint, tuning = Checkpoint.open(DATA / name), Tuning(block_bytes=65536)
    # a process grows a little from one opening to the next, hence the room above the least
    least = Model.least_budget(checkpoint, context=64, chunk=66, tuning=tuning) + (9 << 20)
    room = sum(size for _, size in checkpoint.files)
    budget = int(least + share * room)
    with Model.open(checkpoint, context=64, chunk=66, memory=budget, tuning=tuning) as model:
        if share == 1.0:
            assert model.plan.resident
        assert digest(all_logits(model, 33)) == reference[name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("block", "ring"), [(4096, 2), (16384, 3), (65536, 5), (1 << 20, 2)])
def test_blocks_and_ring_do_not_change_a_bit(reference, name, block, ring):
    assert run_with(name, block_bytes=block, ring=ring, pin=False) == reference[name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_a_bit(reference, name, threads):
    assert run_with(name, threads=threads) == reference[name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [1, 7, 32])
@pytest.mark.parametrize("company", [False, True])
def test_chunks_and_company_do_not_change_a_bit(reference, name, chunk, company):
    assert run_with(name, chunk=chunk, company=company) == reference[name]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(NAMES),
    chunk=st.integers(1, 33),
    threads=st.integers(1, 2),
    block=st.sampled_from([4096, 12288, 40960, 200000]),
    ring=st.integers(2, 6),
    pin=st.booleans(),
    company=st.booleans(),
    slots=st.integers(1, 40),
)
def test_settings_drawn_at_random_do_not_change_a_bit(
    reference, name, chunk, threads, block, ring, pin, company, slots
):
    options = {"block_bytes": block, "ring": ring, "pin": pin, "slots": slots}
    got = run_with(name, chunk=chunk, company=company, threads=threads, **options)
    assert got == reference[name]


if platform.machine() in ("x86_64", "AMD64"):
    CPUS = {
        "avx2": {
            "NUMBA_CPU_NAME": "haswell",
            "NUMBA_CPU_FEATURES": "+sse4.2,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt",
        },
        "generic": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+sse4.2,+avx,+fma,+popcnt"},
    }
else:
    CPUS = {"generic": {"KIMISTREAM_GENERIC_KERNELS": "1"}}


@pytest.mark.parametrize("cpu", CPUS)
def test_another_processor_gives_the_same_bits(reference, cpu, tmp_path):
    """The kernels compiled for a CPU of the same kind with less, and for one with no fast table lookup."""
    env = {**os.environ, **CPUS[cpu], "NUMBA_CACHE_DIR": str(tmp_path)}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), env.get("PYTHONPATH", "")])
    code = "from model.test_exact import run_with; print(run_with('tiny-k3'))"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == reference["tiny-k3"]
