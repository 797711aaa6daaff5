"""`kimistream pack` and `--pack` as a person meets them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kimistream.cli.app import run_app
from kimistream.demo import path as demo_path

TINY = str(Path(__file__).parents[1] / "data" / "tiny-k3")


def refused(capsys, *arguments: str, code: int = 1) -> str:
    assert run_app(list(arguments)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("kimistream: ")
    return err


def test_a_pack_is_made_compared_and_used_with_the_same_tokens_and_logits(tmp_path, capsys):
    out = tmp_path / "demo.pack"
    assert run_app(["pack", "demo", str(out), "--verify"]) == 0
    text = capsys.readouterr().out
    assert "of dense weights in" in text
    assert "every weight compared with the checkpoint" in text
    assert f"Try: kimistream run demo --pack {out}" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo.pack"]
    got = []
    for more in ([], ["--pack", str(out)]):
        logits = tmp_path / f"{len(more)}.npy"
        arguments = ["run", "demo", "--prompt", "The capital of France is", "-n", "6", "--memory", "1GB"]
        assert run_app([*arguments, "--logits", str(logits), "-q", *more]) == 0
        got.append((capsys.readouterr().out, np.load(logits).tobytes()))
    assert got[0] == got[1]


def test_a_checkpoint_spread_over_two_directories_has_the_same_pack(tmp_path, packed, capsys):
    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(TINY, here)
    there.mkdir()
    (here / "model-00003-of-000007.safetensors").rename(there / "model-00003-of-000007.safetensors")
    out = tmp_path / "a.pack"
    assert run_app(["pack", str(here), str(out), "--also", str(there), "-q"]) == 0
    assert run_app(["pack", TINY, str(tmp_path / "b.pack"), "-q"]) == 0
    assert out.read_bytes() == (tmp_path / "b.pack").read_bytes()
    arguments = ["--ids", "5,6", "-n", "3", "--memory", "1GB", "-q", "--ignore-eos"]
    assert run_app(["run", str(here), "--also", str(there), "--pack", str(out), *arguments]) == 0
    spread = capsys.readouterr().out
    assert run_app(["run", TINY, *arguments]) == 0
    assert capsys.readouterr().out == spread


def test_chat_answers_the_same_with_a_pack(packed, capsys):
    pack = packed(demo_path())
    answers = []
    for more in ([], ["--pack", str(pack)]):
        arguments = ["run", "demo", "--chat", "--prompt", "Hello", "-n", "20", "--memory", "1GB", "-q"]
        assert run_app([*arguments, "--think", "off", "--temperature", "0", *more]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    assert answers[0].strip()


def test_a_session_goes_on_with_a_pack_where_it_was_left_without(tmp_path, packed, capsys):
    texts = []
    for more in ([], ["--pack", str(packed(demo_path()))]):
        session = str(tmp_path / f"{len(more)}.session")
        arguments = ["run", "demo", "--memory", "1GB", "-q", "--session", session, "--seed", "5"]
        assert run_app([*arguments, "--prompt", "The capital of", "-n", "3", "--ignore-eos"]) == 0
        assert run_app([*arguments, "-n", "4", "--ignore-eos", *more]) == 0
        texts.append((capsys.readouterr().out, Path(session).read_bytes()))
    assert texts[0] == texts[1]


def test_the_peak_memory_of_a_run_with_a_pack_stays_within_its_budget(packed):
    """In processes of their own, at the least budget that is told."""
    command = [sys.executable, "-m", "kimistream", "run", "demo", "--pack", str(packed(demo_path()))]
    command += ["--ids", "1,2,3", "-n", "8", "--ignore-eos", "--json", "-q"]
    told = subprocess.run([*command, "--memory", "50MB"], capture_output=True, text=True).stderr
    least = told.split("Give at least `--memory ")[1].split("`")[0]
    done = subprocess.run([*command, "--memory", least], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])["summary"]
    assert summary["peak_rss_bytes"] <= summary["budget_bytes"]


def test_json_tells_the_figures_and_a_second_time_nothing_is_done_again(tmp_path, capsys):
    out = str(tmp_path / "a.pack")
    assert run_app(["pack", TINY, out, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["bytes"] == os.path.getsize(out)
    assert (first["earlier_bytes"], first["compared_tensors"]) == (0, None)
    assert first["source_bytes"] > 5_000_000
    assert run_app(["pack", TINY, out, "--json", "--verify"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert second["earlier_bytes"] == second["source_bytes"]
    assert second["compared_tensors"] > 100
    assert run_app(["pack", TINY, out, "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_plan_with_a_pack_keeps_more_and_reads_less(packed, capsys):
    figures = []
    for more in ([], ["--pack", str(packed(demo_path()))]):
        assert run_app(["plan", "demo", "--memory", "1GB", "--no-measure", "--json", *more]) == 0
        figures.append(json.loads(capsys.readouterr().out))
    pinned = [next(p["bytes"] for p in f["parts"] if p["part"] == "pinned blocks") for f in figures]
    assert pinned[1] < 0.9 * pinned[0], "the resident tape"
    assert figures[0]["pack_bytes"] is None
    assert figures[1]["pack_bytes"] == packed(demo_path()).stat().st_size
    assert run_app(["plan", "demo", "--memory", "1GB", "--pack", str(packed(demo_path()))]) == 0
    assert "with the pack" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["run", "--ids", "1", "-n", "2"], ["plan", "--no-measure"]])
def test_a_pack_of_another_checkpoint_is_refused_by_every_command(packed, capsys, command):
    other = str(packed(demo_path()))
    err = refused(capsys, command[0], TINY, *command[1:], "--memory", "1GB", "--pack", other)
    assert f"{other} was made from another checkpoint than {TINY}" in err
    assert f"kimistream pack {TINY}" in err


def test_what_cannot_be_is_refused_with_what_to_do(tmp_path, capsys):
    assert "does not exist" in refused(capsys, "run", TINY, "--ids", "1", "--pack", str(tmp_path / "no.pack"))
    assert "--threads 0: must be 1 or more" in refused(capsys, "pack", TINY, "x", "--threads", "0", code=2)
    assert "--memory '8'" in refused(capsys, "pack", TINY, str(tmp_path / "a"), "--memory", "8", code=2)
    assert "there is no directory" in refused(capsys, "pack", TINY, str(tmp_path / "no" / "a"))
    assert "For example: kimistream pack" in refused(capsys, "pack", TINY, code=2)
    mine = tmp_path / "mine"
    mine.write_text("my thesis")
    assert "is there already" in refused(capsys, "pack", TINY, str(mine))
    assert mine.read_text() == "my thesis"


# Packs slowly, so that it can be interrupted in the middle.
SLOW = """
import os, sys, time
from kimistream.engine import pack_cut, packing
from kimistream.cli.app import run_app
pack_cut.GROUP_BYTES = 100_000
made = packing.Packing.__init__.__kwdefaults__
def slow(handle, view, offset):
    time.sleep(0.1)
    return os.pwrite(handle, view, offset)
made["pwrite"] = slow
sys.exit(run_app(["pack", *sys.argv[1:]]))
"""


def test_ctrl_c_ends_with_code_130_and_the_next_call_goes_on(tmp_path, capfd):
    out = tmp_path / "a.pack"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, TINY, str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    journal = tmp_path / "a.pack.journal"
    deadline = time.monotonic() + 60
    while not (journal.exists() and journal.read_bytes().count(b"\n") > 3) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert time.monotonic() - started < 3
    assert "Traceback" not in err
    assert "pack stopped" in err
    assert "it goes on where it was" in err
    assert not out.exists()
    again = subprocess.run(
        [sys.executable, "-c", SLOW.replace("0.1)", "0)"), TINY, str(out), "--verify"],
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0, again.stderr
    assert "going on with a pack that was begun" in again.stderr
    assert "every weight compared" in again.stdout
