"""A run stopped and resumed, and a run on one core, end with the bytes of an uninterrupted one on two."""

import hashlib
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from training.train import COLD, RATES, rate

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = ROOT / "src" / "kimistream" / "demo" / "checkpoint"

# In a process of its own: a helper has to be forked before anything has started threads.
SCRIPT = """
import sys
from pathlib import Path
from training.shape import Shape
from training.train import Run
out, seed, steps, stop_at, processes = sys.argv[1], *map(int, sys.argv[2:])
shape = Shape(hidden=64, layers=4, mla_layers=(3,), kda_heads=2, dense_inter=64, experts=4, top_k=2)
Run(Path(out), seed=seed, steps=steps, processes=processes, shape=shape, rows=256).go(stop_at)
"""


def _run(out: Path, *, seed: int = 3, steps: int = 6, stop_at: int = 99, processes: int = 2):
    out.mkdir(exist_ok=True)
    for name in ("tiktoken.model", "tokenizer_config.json"):
        shutil.copyfile(VOCABULARY / name, out / name)
    arguments = map(str, (out, seed, steps, stop_at, processes))
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


def test_a_run_of_another_seed_or_length_is_refused(tmp_path: Path):
    assert _run(tmp_path, stop_at=5).returncode == 0
    for other in (_run(tmp_path, seed=4), _run(tmp_path, steps=7)):
        assert other.returncode == 1
        assert "choose another --out" in other.stderr


def test_the_number_of_steps_matters_only_once_the_rate_falls():
    last = RATES[-1][0]
    for steps in (2 * last, 3 * last):
        assert rate(int(0.69 * steps), steps) == RATES[-1][1]
        assert rate(steps - 1, steps) == pytest.approx(COLD, rel=0.2)
    rates = [rate(step, 2 * last) for step in range(RATES[1][0], 2 * last)]
    assert all(a >= b for a, b in itertools.pairwise(rates))
