"""Any damage to any file: verify ends in findings or one refusal, never in a traceback, and misses nothing.

KIMISTREAM_FUZZ=20000 runs that many cases instead of the suite's few hundred.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from verify_fixtures import with_manifest

sys.path.insert(0, str(Path(__file__).parents[1] / "checkpoint"))
from test_checkpoint_fuzz import SIZES, damage, spoil

from kimistream.checkpoint.synth import synth
from kimistream.engine.deep import DeepCheck, judge
from kimistream.engine.verify import inspect
from kimistream.errors import KimistreamError

CASES = int(os.environ.get("KIMISTREAM_FUZZ", "100"))
FUZZ = settings(
    max_examples=CASES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
OURS = ["kimistream-manifest.json", ".kimistream/verify.json", ".kimistream/pull.json"]


@pytest.fixture(scope="module")
def whole():
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "whole"
        synth(path, SIZES)
        with_manifest(path, "hub")
        shutil.rmtree(path / ".kimistream", ignore_errors=True)
        yield path


def verified(directory: Path) -> list[str]:
    """What is wrong, by the full check; a refusal counts as one thing."""
    try:
        inspected = inspect(directory)
        findings = judge(inspected, DeepCheck(inspected, workers=2).run())
    except KimistreamError as error:
        return [error.what or "a refusal without a word"]
    assert all(finding.repair for finding in findings)
    return [str(finding) for finding in findings if not finding.harmless]


def copy_with(whole: Path, directory: str, name: str, data: bytes | None) -> Path:
    """A copy in which one file is replaced (None: removed); the others are links."""
    target = Path(directory)
    for path in whole.iterdir():
        if path.is_file() and path.name != name:
            (target / path.name).symlink_to(path)
    if data is not None:
        (target / name).parent.mkdir(exist_ok=True)
        (target / name).write_bytes(data)
    return target


@FUZZ
@given(st.data())
def test_no_damage_to_a_file_is_missed(whole, data):
    names = sorted(path.name for path in whole.iterdir() if path.is_file() and path.name not in OURS)
    name = data.draw(st.sampled_from(names))
    raw = (whole / name).read_bytes()
    kind = data.draw(st.sampled_from(["spoil", "tree", "zeros", "remove"]))
    damaged: bytes | None = None
    if kind == "spoil":
        damaged = spoil(data, raw)
    elif kind == "tree":
        damaged = _tree(data, name, raw)
    elif kind == "zeros":
        at = data.draw(st.integers(0, len(raw) - 1))
        damaged = raw[:at] + bytes(min(data.draw(st.integers(1, 9000)), len(raw) - at))
        damaged += raw[len(damaged) :]
    with tempfile.TemporaryDirectory() as directory:
        wrong = verified(copy_with(whole, directory, name, damaged))
    assert bool(wrong) == (damaged != raw)
    assert any(name in text for text in wrong) or not wrong or kind == "tree" or name == "config.json"


def _tree(data: st.DataObject, name: str, raw: bytes) -> bytes:
    """The JSON of a file (for a shard, of its header) with some values changed."""
    if not name.endswith(".safetensors"):
        return json.dumps(damage(data, json.loads(raw))).encode()
    length = int.from_bytes(raw[:8], "little")
    text = json.dumps(damage(data, json.loads(raw[8 : 8 + length]))).encode()
    return len(text).to_bytes(8, "little") + text + raw[8 + length :]


@FUZZ
@given(st.data())
def test_damage_to_our_own_notes_is_refused_or_changes_nothing(whole, data):
    name = data.draw(st.sampled_from(OURS))
    if name == OURS[0]:
        raw = (whole / name).read_bytes()
    else:
        status = (whole / "config.json").stat()
        entry = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": "0" * 64, "marks": ""}
        if name == OURS[1]:
            raw = json.dumps(
                {"began": 1e9, "format": 1, "files": {"config.json": entry | {"troubles": [], "error": ""}}}
            ).encode()
        else:
            raw = json.dumps(
                {"repo": "a/b", "revision": "main", "commit": "c", "files": {"config.json": entry}}
            ).encode()
    if data.draw(st.booleans()):
        raw = spoil(data, raw)
    else:
        raw = json.dumps(damage(data, json.loads(raw))).encode()
    with tempfile.TemporaryDirectory() as directory:
        wrong = verified(copy_with(whole, directory, name, raw))
    if name != OURS[0]:
        assert wrong == []
