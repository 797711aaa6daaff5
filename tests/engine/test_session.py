"""Sessions: resumed bit for bit, and refused by name when anything about the file is wrong."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kimistream.checkpoint.table import Checkpoint
from kimistream.engine.generate import prefill
from kimistream.engine.model import Model
from kimistream.engine.session import Session, Snapshot
from kimistream.engine.session_file import load_session, save_session
from kimistream.errors import OutputError, SessionError
from kimistream.model.rows import Run

TINY = Path(__file__).parents[1] / "data" / "tiny-k3"
IDS = np.random.default_rng(3).integers(0, 500, 40).astype(np.int32)


def digest(rows: list[np.ndarray]) -> str:
    return hashlib.sha256(np.concatenate(rows).tobytes()).hexdigest()


def greedy_steps(model: Model, state, logits: np.ndarray, steps: int) -> list[np.ndarray]:
    rows = [logits]
    for _ in range(steps):
        token = np.array([np.argmax(rows[-1][-1])], np.int32)
        rows.append(model.forward.run([Run(state, token, "last")]))
    return rows


@pytest.fixture(scope="module")
def model():
    with Model.open(TINY, memory="2GB", context=128) as opened:
        yield opened


@pytest.fixture
def saved(model, tmp_path) -> Path:
    """A session of 25 tokens with an earlier snapshot after 10."""
    state = model.new_state()
    prefill(model.forward, state, IDS[:10], chunk=16)
    early = Snapshot.of(state)
    prefill(model.forward, state, IDS[10:25], chunk=16)
    path = tmp_path / "talk.session"
    save_session(path, Session.of(state, IDS[:25], [early]), model.checkpoint)
    return path


def continued(model: Model, path: Path | None, ids: np.ndarray) -> tuple[int, str]:
    """(tokens taken from the session, digest of the logits of what follows)."""
    state = model.new_state()
    kept = load_session(path, model.checkpoint).restore(state, ids) if path else 0
    logits = prefill(model.forward, state, ids[kept:], chunk=16)
    return kept, digest(greedy_steps(model, state, logits, 5))


def test_a_resumed_session_equals_a_full_recomputation_bit_for_bit(model, saved):
    kept, got = continued(model, saved, IDS)
    assert kept == 25
    assert got == continued(model, None, IDS)[1]


def test_an_edited_history_resumes_from_the_longest_exact_prefix(model, saved):
    for edit, expected in ((24, 10), (10, 10), (9, 0), (0, 0)):
        ids = IDS.copy()
        ids[edit] = (ids[edit] + 1) % 500
        kept, got = continued(model, saved, ids)
        assert kept == expected
        assert got == continued(model, None, ids)[1]


def test_the_very_same_history_leaves_one_token_to_compute(model, saved):
    kept, got = continued(model, saved, IDS[:25])
    assert kept == 10
    assert got == continued(model, None, IDS[:25])[1]


def test_a_restart_at_another_budget_and_thread_count_gives_the_same_bits(model, saved):
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "from engine.test_session import IDS, TINY, Model, continued\n"
        "least = Model.least_budget(TINY, context=64, chunk=16)\n"
        "with Model.open(TINY, memory=least + (16 << 20), context=64, chunk=16, threads=1) as model:\n"
        "    print(*continued(model, Path(sys.argv[1]), IDS))\n"
    )
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code, str(saved), tests], capture_output=True, text=True, check=True
    )
    kept, got = done.stdout.split()
    assert int(kept) == 25
    assert got == continued(model, None, IDS)[1]


def test_any_flipped_bit_is_refused_by_name(model, saved):
    good = saved.read_bytes()
    rng = np.random.default_rng(0)
    for at in [12, 60, *rng.integers(700, len(good), 12), len(good) - 1]:
        bad = bytearray(good)
        bad[at] ^= 1 << int(rng.integers(8))
        saved.write_bytes(bad)
        with pytest.raises(SessionError, match=r"talk\.session"):
            load_session(saved, model.checkpoint)


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 2000, -1, -4096])
def test_a_file_cut_short_is_refused_by_name(model, saved, keep):
    data = saved.read_bytes()
    saved.write_bytes(data[:keep])
    with pytest.raises(SessionError, match=r"talk\.session"):
        load_session(saved, model.checkpoint)


def test_a_session_of_other_weights_of_the_same_shape_is_refused(saved, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(TINY, other)
    shard = sorted(other.glob("*.safetensors"))[0]
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(SessionError, match="another checkpoint"):
        load_session(saved, Checkpoint.open(other))


def test_what_is_no_session_is_refused(model, tmp_path):
    with pytest.raises(SessionError, match="nowhere"):
        load_session(tmp_path / "nowhere", model.checkpoint)
    shard = sorted(TINY.glob("*.safetensors"))[0]
    with pytest.raises(SessionError):
        load_session(shard, model.checkpoint)
    (tmp_path / "text").write_text("hello, this is a text\n" * 9)
    with pytest.raises(SessionError):
        load_session(tmp_path / "text", model.checkpoint)


def test_a_session_that_cannot_be_written_leaves_the_old_one(model, saved):
    before = saved.read_bytes()
    session = load_session(saved, model.checkpoint)
    with pytest.raises(OutputError, match="nowhere"):
        save_session(saved.parent / "nowhere" / "x.session", session, model.checkpoint)
    if os.path.exists("/dev/full"):
        target = saved.parent / "full.session"
        (saved.parent / "full.session.partial").symlink_to("/dev/full")
        with pytest.raises(OutputError, match="room"):
            save_session(target, session, model.checkpoint)
        assert not target.exists()
    assert saved.read_bytes() == before
    assert {p.name for p in saved.parent.iterdir()} == {"talk.session"}
