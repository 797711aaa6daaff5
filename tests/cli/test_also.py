"""`--also`: shards spread over several directories are the same checkpoint, and their reads queue by drive."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from kimistream.cli.app import run_app
from kimistream.engine import doctor
from kimistream.engine.model import Model
from kimistream.errors import CheckpointError, ShardError
from kimistream.stream import files

TINY = Path(__file__).parents[1] / "data" / "tiny-k3"
SHARDS = sorted(path.name for path in TINY.glob("*.safetensors"))
GIVEN = ("--ids", "5,6,7", "-n", "3", "--memory", "2GB", "-q", "--ignore-eos")


@pytest.fixture
def split(tmp_path) -> tuple[Path, Path, Path]:
    """The tiny checkpoint over three directories; only the first has more than shards."""
    places = tuple(tmp_path / name for name in ("one", "two", "three"))
    shutil.copytree(TINY, places[0])
    for place in places[1:]:
        place.mkdir()
    for number, name in enumerate(SHARDS):
        if number % 3:
            (places[0] / name).rename(places[number % 3] / name)
    return places


def options(split: tuple[Path, ...]) -> list[str]:
    return [word for place in split[1:] for word in ("--also", str(place))]


def test_split_shards_give_the_same_logits_and_the_same_tokens(split, tmp_path, capsys):
    digests = []
    for directory, more in ((TINY, []), (split[0], options(split))):
        target = tmp_path / f"{directory.name}.npy"
        assert run_app(["run", str(directory), *more, *GIVEN, "--logits", str(target)]) == 0
        digests.append((capsys.readouterr().out, np.load(target).tobytes()))
    assert digests[0] == digests[1]


def test_each_drive_has_a_queue_and_threads_of_its_own(split, monkeypatch):
    monkeypatch.setattr(
        files, "_drive_of", lambda fd: hash(os.path.dirname(os.readlink(f"/proc/self/fd/{fd}")))
    )
    with Model.open(TINY, memory="2GB", context=16) as whole:
        want = [record.id for record in whole.generate([5, 6, 7], max_tokens=4, ignore_eos=True)]
        assert whole.reader.drives == 1
    with Model.open(split[0], also=split[1:], memory="2GB", context=16) as model:
        assert model.reader.drives == 3
        assert [record.id for record in model.generate([5, 6, 7], max_tokens=4, ignore_eos=True)] == want
        assert model.checkpoint.identity == whole.checkpoint.identity


def test_a_shard_in_two_directories_is_refused_with_both_paths_and_sizes(split, capsys):
    (split[1] / SHARDS[0]).write_bytes(b"other")
    assert run_app(["run", str(split[0]), *options(split), *GIVEN]) == 1
    told = capsys.readouterr().err
    size = (split[0] / SHARDS[0]).stat().st_size
    assert f"{split[0] / SHARDS[0]} ({size:,} bytes) and {split[1] / SHARDS[0]} (5 bytes)" in told
    assert "--also" in told


def test_a_shard_in_none_is_refused_with_all_directories_that_were_looked_at(split, capsys):
    (split[2] / SHARDS[2]).unlink()
    assert run_app(["run", str(split[0]), *options(split), *GIVEN]) == 1
    told = capsys.readouterr().err
    assert SHARDS[2] in told
    assert f"missing from {split[0]} and {split[1]} and {split[2]}" in told
    assert "Fetch it with: kimistream pull" in told


def test_without_an_index_the_rules_are_the_same(split):
    (split[0] / "model.safetensors.index.json").unlink()
    with Model.open(split[0], also=split[1:], memory="2GB", context=16):
        pass
    shutil.copy(split[1] / SHARDS[1], split[2])
    with pytest.raises(ShardError, match="is there twice"):
        Model.open(split[0], also=split[1:], memory="2GB", context=16)


@pytest.mark.parametrize(
    ("name", "says"), [("nowhere", "does not exist"), ("one", "is the same directory as")]
)
def test_a_directory_that_adds_nothing_is_refused_by_its_option(split, name, says):
    with pytest.raises(CheckpointError, match=f"--also .*{name}: {says}"):
        Model.open(split[0], also=[split[0].parent / name], memory="2GB", context=16)


def test_plan_takes_the_shards_of_all_directories(split, capsys):
    assert run_app(["plan", str(split[0]), "--no-measure", "--json"]) == 1
    assert "is missing" in capsys.readouterr().err
    assert run_app(["plan", str(split[0]), *options(split), "--no-measure", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["least_bytes"] > 0


def test_verify_checks_the_shards_of_all_directories_and_mends_each_where_it_is(split, capsys):
    assert run_app(["verify", str(split[0]), *options(split), "--deep", "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == len(SHARDS) + 2
    os.truncate(split[1] / SHARDS[1], 1000)
    os.truncate(split[2] / SHARDS[2], 1000)
    assert run_app(["verify", str(split[0]), *options(split), "-q"]) == 1
    told = capsys.readouterr().err
    for place, name in ((split[1], SHARDS[1]), (split[2], SHARDS[2])):
        assert f"kimistream pull moonshotai/Kimi-K3 {place} --files {name}" in told


def test_verify_names_a_shard_that_is_there_twice(split, capsys):
    shutil.copy(split[1] / SHARDS[1], split[0])
    assert run_app(["verify", str(split[0]), *options(split), "--json", "-q"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["file"] == SHARDS[1]
    assert "is there twice" in finding["what"]


def test_doctor_sees_all_directories_and_names_them_in_its_command(split, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_rates", lambda places, *_: (None, f"{len(places)} places"))
    monkeypatch.setattr(doctor, "_memory_rate", lambda: 2e10)
    assert run_app(["doctor", str(split[0]), *options(split), "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["whole"]
    assert found["unmeasured"] == "3 places"
    also = " ".join(options(split))
    assert found["command"] == f"kimistream run {split[0]} {also} --ids 1,2,3"


def test_chat_takes_the_shards_of_all_directories(talking, tmp_path, capsys, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(talking, here)
    there.mkdir()
    for path in sorted(here.glob("*.safetensors"))[:2]:
        path.rename(there / path.name)
    answers = []
    for words in ([str(talking)], [str(here), "--also", str(there)]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hi\n")))
        assert run_app(["chat", *words, "--memory", "2GB", "-n", "8", "--temperature", "0", "-q"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
