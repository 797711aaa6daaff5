"""`kimistream run` as a person meets it: what is printed where, exit codes, and every kind of bad input."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kimistream.cli.app import run_app

DATA = Path(__file__).parents[1] / "data"
TINY = str(DATA / "tiny-k3")
GREEDY = json.loads((DATA / "tiny-k3.golden.json").read_text())


@pytest.fixture
def copy(tmp_path) -> Path:
    """A copy of the tiny checkpoint to break."""
    target = tmp_path / "tiny"
    shutil.copytree(DATA / "tiny-k3", target)
    return target


def refused(capsys, *arguments: str, code: int = 1) -> str:
    """Run a command line that must be refused; its message."""
    assert run_app(["run", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("kimistream: ")
    return err


# ---- what is printed


def test_ids_in_ids_out_on_stdout_and_the_report_on_stderr(capsys):
    assert run_app(["run", TINY, "--ids", "7", "-n", "4", "--memory", "1GB", "--ignore-eos"]) == 0
    out, err = capsys.readouterr()
    assert len(out.split()) == 4
    assert all(word.isdigit() for word in out.split())
    assert "s/token" in err
    assert "peak memory" in err
    assert "of a budget of 1.00 GB" in err


def test_quiet_prints_tokens_only(capsys):
    assert run_app(["run", TINY, "--ids", "7", "-n", "2", "--memory", "1GB", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert len(out.split()) == 2
    assert err == ""


def test_json_has_one_object_per_token_and_a_summary(capsys):
    assert (
        run_app(["run", TINY, "--ids", "1,2,3", "-n", "3", "--memory", "1GB", "--json", "-q", "--ignore-eos"])
        == 0
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 4
    for token in lines[:3]:
        assert {"id", "text", "seconds", "tape_bytes", "expert_bytes"} <= token.keys()
    summary = lines[3]["summary"]
    wanted = {"tokens", "seconds_per_token", "bytes_per_token", "disk_bytes_per_second", "disk_wait_share"}
    assert wanted | {"peak_rss_bytes", "budget_bytes"} <= summary.keys()
    assert summary["tokens"] == 3
    assert summary["budget_bytes"] == 10**9
    assert summary["peak_rss_bytes"] > 0


def test_the_golden_continuation_comes_out(capsys, tmp_path):
    prompt = GREEDY["prompts"]["p5"]
    ids = ",".join(map(str, prompt["ids"]))
    logits = tmp_path / "logits.npy"
    arguments = ["run", TINY, "--ids", ids, "-n", "8", "--memory", "1GB", "-q", "--ignore-eos"]
    assert run_app([*arguments, "--logits", str(logits)]) == 0
    assert [int(w) for w in capsys.readouterr().out.split()] == prompt["greedy"][:8]
    array = np.load(logits)
    assert array.shape == (5 + 8, 512)
    assert array.dtype == np.float32
    assert [int(np.argmax(row)) for row in array[4:12]] == prompt["greedy"][:8]
    assert not list(tmp_path.glob("*.partial"))


def test_the_embedded_model_takes_text_and_gives_text(capsys):
    assert run_app(["run", "demo", "--prompt", "Hello", "-n", "4", "--memory", "1GB", "--ignore-eos"]) == 0
    out, err = capsys.readouterr()
    assert out.strip()
    assert "4 tokens" in err


def test_a_prompt_file_is_read(capsys, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("Hello")
    assert run_app(["run", "demo", "--prompt-file", str(file), "-n", "4", "--memory", "1GB", "-q"]) == 0
    from_file = capsys.readouterr().out
    assert run_app(["run", "demo", "--prompt", "Hello", "-n", "4", "--memory", "1GB", "-q"]) == 0
    assert capsys.readouterr().out == from_file


# ---- options


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-tokens", "abc"),
        ("--max-tokens", "0"),
        ("--max-tokens", "-3"),
        ("--max-tokens", "1.5"),
        ("--memory", "8"),
        ("--memory", "-1GB"),
        ("--memory", "lots"),
        ("--memory", "0GB"),
        ("--threads", "0"),
        ("--threads", "two"),
        ("--context", "0"),
        ("--chunk", "0"),
        ("--ids", "x"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_with_its_value(capsys, option, value):
    more = [] if option == "--ids" else ["--ids", "1"]
    message = refused(capsys, TINY, *more, option, value, code=2)
    assert option in message
    assert value in message
    assert "For example: kimistream run" in message


def test_unknown_options_two_prompts_and_none_are_usage_errors(capsys):
    assert "--bogus" in refused(capsys, TINY, "--ids", "1", "--bogus", code=2)
    assert "--prompt" in refused(capsys, TINY, "--prompt", "a", "--prompt", "b", code=2)
    assert "--ids" in refused(capsys, TINY, "--prompt", "a", "--ids", "1", code=2)
    assert "given: none" in refused(capsys, TINY, code=2)
    assert run_app(["run"]) == 2


def test_ids_outside_the_vocabulary_and_empty_prompts_are_refused(capsys):
    assert "512" in refused(capsys, TINY, "--ids", "512", code=2)
    assert "-1" in refused(capsys, TINY, "--ids=-1", code=2)
    assert "empty" in refused(capsys, TINY, "--ids", "", code=2)
    assert "empty" in refused(capsys, "demo", "--prompt", "", code=2)


def test_text_without_a_tokenizer_is_refused_and_says_to_give_ids(capsys):
    message = refused(capsys, TINY, "--prompt", "hello")
    assert "tiktoken.model" in message
    assert "--ids" in message


def test_a_budget_below_the_least_says_the_least_and_the_least_works():
    command = [sys.executable, "-m", "kimistream", "run", TINY, "--ids", "1", "-n", "2"]
    done = subprocess.run([*command, "--memory", "20MB"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "20.0 MB" in done.stderr
    budget = done.stderr.split("--memory ")[1].split("`")[0]
    done = subprocess.run(
        [*command, "--memory", budget, "--json"], capture_output=True, text=True, check=True
    )
    summary = json.loads(done.stdout.splitlines()[-1])["summary"]
    assert summary["peak_rss_bytes"] <= summary["budget_bytes"]


def test_a_context_too_small_for_the_request_is_refused(capsys):
    message = refused(capsys, TINY, "--ids", "1,2,3", "-n", "8", "--context", "6", "--memory", "1GB", code=2)
    assert "--context" in message


# ---- checkpoints


def test_what_is_not_a_checkpoint_is_refused(capsys, tmp_path, copy):
    assert str(tmp_path / "nowhere") in refused(capsys, str(tmp_path / "nowhere"), "--ids", "1")
    (tmp_path / "empty").mkdir()
    assert "config.json" in refused(capsys, str(tmp_path / "empty"), "--ids", "1")
    for shard in copy.glob("*.safetensors"):
        shard.unlink()
    assert ".safetensors" in refused(capsys, str(copy), "--ids", "1")


def test_a_shard_cut_by_one_byte_is_refused_with_both_sizes(capsys, copy):
    shard = sorted(copy.glob("*.safetensors"))[1]
    size = shard.stat().st_size
    with shard.open("r+b") as file:
        file.truncate(size - 1)
    message = refused(capsys, str(copy), "--ids", "1").replace(",", "").replace("_", "")
    assert shard.name in message
    assert str(size) in message
    assert str(size - 1) in message


# ---- numbers


def poison(directory: Path, name: str, at: int, raw: bytes) -> None:
    """Overwrite bytes of one tensor."""
    index = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    path = directory / index[name]
    with path.open("r+b") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        begin = json.loads(file.read(length))[name]["data_offsets"][0]
        file.seek(8 + length + begin + at)
        file.write(raw)


NAN, INF = b"\xc0\x7f", b"\x80\x7f"
LAYERS = "language_model.model.layers"


@pytest.mark.parametrize(
    ("tensor", "at", "raw"),
    [
        (f"{LAYERS}.0.self_attn.q_proj.weight", 320, NAN),
        (f"{LAYERS}.0.self_attn.g_proj.weight", 40, INF),
        (f"{LAYERS}.2.self_attn.f_b_proj.weight", 6, INF),
        (f"{LAYERS}.3.self_attn.kv_b_proj.weight", 130, INF),
        (f"{LAYERS}.3.self_attn.kv_b_proj.weight", 32 * 64 * 2 + 4, NAN),
        (f"{LAYERS}.0.mlp.gate_proj.weight", 0, NAN),
        (f"{LAYERS}.5.block_sparse_moe.gate.weight", 10, NAN),
        (f"{LAYERS}.5.block_sparse_moe.shared_experts.up_proj.weight", 10, INF),
        (f"{LAYERS}.5.block_sparse_moe.routed_expert_up_proj.weight", 10, INF),
        (f"{LAYERS}.4.input_layernorm.weight", 2, NAN),
        (f"{LAYERS}.4.self_attn.q_conv1d.weight", 0, b"\x00\x00\xc0\x7f"),
        (f"{LAYERS}.4.self_attn.A_log", 0, b"\x00\x00\x80\x7f"),
        ("language_model.lm_head.weight", 512, NAN),
        ("language_model.model.embed_tokens.weight", 160 * 2 * 7 + 2, INF),
        ("language_model.model.norm.weight", 4, NAN),
    ],
)
def test_a_nan_or_an_infinity_stops_the_run_and_names_the_tensor(capsys, copy, tensor, at, raw):
    poison(copy, tensor, at, raw)
    message = refused(capsys, str(copy), "--ids", "7", "-n", "3", "--memory", "1GB")
    assert tensor in message


@pytest.mark.parametrize("part", ["w1", "w2", "w3"])
def test_a_scale_of_255_stops_the_run_and_names_the_expert(capsys, copy, part):
    for expert in range(32):
        poison(copy, f"{LAYERS}.6.block_sparse_moe.experts.{expert}.{part}.weight_scale", 3, b"\xff")
    message = refused(capsys, str(copy), "--ids", "7", "-n", "1", "--memory", "1GB")
    assert f"{LAYERS}.6.block_sparse_moe.experts." in message
    assert f".{part}.weight_scale" in message


# ---- output


def test_a_result_file_that_cannot_be_written_is_found_before_the_work(capsys, tmp_path):
    target = tmp_path / "nowhere" / "logits.npy"
    message = refused(capsys, TINY, "--ids", "1", "--logits", str(target))
    assert str(target) in message
    message = refused(capsys, TINY, "--ids", "1", "--logits", str(tmp_path))
    assert "directory" in message


def test_a_failed_run_leaves_no_result_file(capsys, copy, tmp_path):
    poison(copy, "language_model.lm_head.weight", 512, NAN)
    target = tmp_path / "logits.npy"
    refused(capsys, str(copy), "--ids", "7", "--memory", "1GB", "--logits", str(target))
    assert list(tmp_path.glob("logits*")) == []
