"""The look at a checkpoint that reads no weights: everything missing, cut, or not fitting is named (T1)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from verify_fixtures import SHARD, copy_tiny, deep_findings, place, with_manifest

from damage import flip
from kimistream.cli.app import run_app
from kimistream.demo import path as demo_path
from kimistream.engine.verify import inspect
from kimistream.errors import CheckpointError, ConfigError

VISION = "model-00007-of-000007.safetensors"


@pytest.fixture
def tiny(tmp_path):
    return copy_tiny(tmp_path)


def repair(directory, name: str, repo: str = "moonshotai/Kimi-K3") -> str:
    return f"kimistream pull {repo} {directory} --files {name}"


def test_a_good_checkpoint_has_no_findings(tiny):
    inspected = inspect(tiny)
    assert inspected.findings == []
    assert len(inspected.shards) == 7
    assert inspected.tensors == 2668
    assert inspected.nbytes == sum(path.stat().st_size for path in tiny.iterdir())


@pytest.mark.parametrize("cut", [1, 1_000_000])
def test_a_cut_shard_is_named_with_both_sizes_and_its_command(tiny, cut):
    size = (tiny / SHARD).stat().st_size
    os.truncate(tiny / SHARD, size - cut)
    (finding,) = inspect(tiny).findings
    assert finding.file == SHARD
    assert f"{size - cut:,}" in finding.what
    assert f"{size:,}" in finding.what
    assert finding.repair == repair(tiny, SHARD)


def test_every_missing_shard_is_named_not_only_the_first(tiny):
    gone = [SHARD, "model-00004-of-000007.safetensors"]
    for name in gone:
        (tiny / name).unlink()
    findings = inspect(tiny).findings
    assert [finding.file for finding in findings] == gone
    assert all("is missing" in finding.what for finding in findings)
    assert [finding.repair for finding in findings] == [repair(tiny, name) for name in gone]


def test_the_image_tower_may_be_absent_but_not_if_the_manifest_has_it(tiny):
    with_manifest(tiny)
    path = next(
        p for p in sorted(tiny.glob("*.safetensors")) if "vision" in p.read_bytes()[:2000].decode("latin1")
    )
    path.unlink()
    assert [finding.file for finding in inspect(tiny).findings] == [path.name]
    (tiny / "kimistream-manifest.json").unlink()
    assert inspect(tiny).findings == []


def test_a_cut_and_a_damaged_header_are_both_found_in_one_look(tiny):
    os.truncate(tiny / SHARD, 5)
    flip(tiny / "model-00003-of-000007.safetensors", 9)
    assert {finding.file for finding in inspect(tiny).findings} == {
        SHARD,
        "model-00003-of-000007.safetensors",
    }


def test_a_tensor_that_is_not_where_the_index_says_is_found(tiny):
    index = json.loads((tiny / "model.safetensors.index.json").read_text())
    name = next(n for n, shard in index["weight_map"].items() if shard == SHARD)
    index["weight_map"][name] = "model-00003-of-000007.safetensors"
    (tiny / "model.safetensors.index.json").write_text(json.dumps(index))
    (finding,) = inspect(tiny).findings
    assert name in finding.what


def test_a_size_that_is_not_the_manifests_is_found_in_any_file(tiny):
    (tiny / "generation_config.json").write_text("{}")
    with_manifest(tiny)
    manifest = json.loads((tiny / "kimistream-manifest.json").read_text())
    manifest["files"]["config.json"]["size"] += 1
    (tiny / "kimistream-manifest.json").write_text(json.dumps(manifest))
    (finding,) = inspect(tiny).findings
    assert finding.file == "config.json"
    assert f"{manifest['files']['config.json']['size']:,}" in finding.what


def test_the_repair_comes_from_where_the_files_came(tiny):
    with_manifest(tiny, "hub")
    (tiny / SHARD).unlink()
    assert inspect(tiny).findings[0].repair == repair(tiny, SHARD, "owner/model")
    (tiny / "kimistream-manifest.json").unlink()
    (tiny / ".kimistream").mkdir(exist_ok=True)
    (tiny / ".kimistream" / "pull.json").write_text('{"repo": "owner/other"}')
    assert inspect(tiny).findings[0].repair == repair(tiny, SHARD, "owner/other")


def test_a_hole_is_found_with_its_tensor(tiny):
    path = tiny / SHARD
    name = "language_model.model.layers.4.self_attn.q_proj.weight"
    offset, nbytes = place(tiny, SHARD, name)
    start = -(-offset // 4096) * 4096
    assert start + 8192 <= offset + nbytes
    data = path.read_bytes()
    with path.open("wb") as file:  # written anew around the hole
        file.write(data[:start])
        file.seek(start + 8192)
        file.write(data[start + 8192 :])
    (finding,) = inspect(tiny).findings
    assert (finding.file, finding.tensor) == (SHARD, name)
    assert "8,192 bytes" in finding.what
    assert finding.repair == repair(tiny, SHARD)


def test_there_must_be_something_to_look_at(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        inspect(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        inspect(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError):
        inspect(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"source": "hub"}',
        '{"source": "hub", "files": {"../x": {"size": 1, "sha256": "' + "0" * 64 + '"}}}',
        '{"source": "hub", "files": {"x": {"size": 1, "sha256": "no"}}}',
        '{"source": "hub", "files": {}, "format": 9}',
    ],
)
def test_a_manifest_that_is_none_is_refused(tiny, text):
    (tiny / "kimistream-manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"kimistream-manifest\.json") as info:
        inspect(tiny)
    assert "--write-manifest" in info.value.remedy


def test_the_command_ends_with_1_and_one_command_for_all(tiny, capsys):
    assert run_app(["verify", str(tiny)]) == 0
    assert "all that the model needs is there" in capsys.readouterr().out
    (tiny / SHARD).unlink()
    os.truncate(tiny / "model-00003-of-000007.safetensors", 100)
    assert run_app(["verify", str(tiny)]) == 1
    out, err = capsys.readouterr()
    assert f"WRONG {SHARD}: is missing" in out
    assert "2 things are wrong" in err
    assert (
        f"kimistream pull moonshotai/Kimi-K3 {tiny} --files {SHARD} model-00003-of-000007.safetensors" in err
    )
    assert run_app(["verify", str(tiny), "--json"]) == 1
    fields = json.loads(capsys.readouterr().out)
    assert fields["right"] is False
    assert [finding["file"] for finding in fields["findings"]] == [SHARD, "model-00003-of-000007.safetensors"]


def test_options_that_exclude_each_other_are_refused(tiny, capsys):
    assert run_app(["verify", str(tiny), "--memory", "1GB"]) == 2
    assert "--memory belongs to --golden" in capsys.readouterr().err
    assert run_app(["verify", str(tiny), "--workers", "0"]) == 2


def test_the_embedded_model_is_right(tmp_path):
    """It has no manifest, and what may be zero in it is zero: nothing is mixed before the first layer."""
    copy = Path(shutil.copytree(demo_path(), tmp_path / "demo"))
    assert deep_findings(copy) == []
