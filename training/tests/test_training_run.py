"""A run stopped and resumed, and a run on one core, end with the bytes of an uninterrupted one on two."""

import hashlib
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from training.train import COOLING, LAST, PHASES, STEPS, rate

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = ROOT / "src" / "kimistream" / "demo" / "checkpoint"

# In a process of its own: a helper has to be forked before anything has started threads.
SCRIPT = """
import sys
from pathlib import Path
from training.shape import Shape
from training.train import Run
out, seed, stop_at, processes = sys.argv[1], *map(int, sys.argv[2:])
shape = Shape(hidden=64, layers=4, mla_layers=(3,), kda_heads=2, dense_inter=64, experts=4, top_k=2)
Run(Path(out), seed=seed, processes=processes, shape=shape, rows=256).go(stop_at)
"""


def _run(out: Path, *, seed: int = 3, stop_at: int = 6, processes: int = 2):
    out.mkdir(exist_ok=True)
    for name in ("tiktoken.model", "tokenizer_config.json"):
        shutil.copyfile(VOCABULARY / name, out / name)
    arguments = map(str, (out, seed, stop_at, processes))
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], cwd=ROOT, capture_output=True, text=True
    )


def _digest(out: Path) -> str:
    return hashlib.sha256((out / "state.pt").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("whole")
    done = _run(out)
    assert done.returncode == 0, done.stderr
    return _digest(out)


def test_the_same_seed_gives_the_same_bytes_again(whole: str, tmp_path: Path):
    assert _run(tmp_path).returncode == 0
    assert _digest(tmp_path) == whole


def test_a_run_stopped_and_resumed_gives_the_bytes_of_one_that_was_not(whole: str, tmp_path: Path):
    assert _run(tmp_path, stop_at=2).returncode == 0
    assert _digest(tmp_path) != whole
    assert _run(tmp_path).returncode == 0
    assert _digest(tmp_path) == whole


def test_one_process_gives_the_bytes_of_two(whole: str, tmp_path: Path):
    assert _run(tmp_path, processes=1).returncode == 0
    assert _digest(tmp_path) == whole


def test_another_seed_gives_other_bytes(whole: str, tmp_path: Path):
    assert _run(tmp_path, seed=4).returncode == 0
    assert _digest(tmp_path) != whole


def test_a_run_of_another_seed_is_refused(tmp_path: Path):
    assert _run(tmp_path, stop_at=1).returncode == 0
    other = _run(tmp_path, seed=4)
    assert other.returncode == 1
    assert "choose another --out" in other.stderr


def test_the_rate_rises_once_falls_to_nothing_and_again_in_the_last_phase():
    rates = [rate(step) for step in range(STEPS)]
    last = PHASES[-1]
    assert max(rates) == rates[20] == 1.0
    assert rates[last - 1] < 0.01 * rates[int(COOLING[0])]
    assert rates[last] == LAST[0][1]
    assert rates[-1] < 0.02 * rates[last]
    for first, end in ((200, last), (last, STEPS)):
        assert all(a > b for a, b in itertools.pairwise(rates[first:end]))
