"""`kimistream pull` as a person meets it: the options, the last lines, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "checkpoint"))
from hub_server import REPO, FakeHub
from pull_fixtures import held, some_files

SOURCE = str(Path(__file__).parents[2] / "src")


def command(endpoint: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= {"HF_ENDPOINT": endpoint, "PYTHONPATH": SOURCE, "HF_TOKEN": "hf_NeverShown1"}
    return subprocess.Popen(
        [sys.executable, "-m", "kimistream", "pull", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_it_says_what_is_there_and_what_to_do_next(tmp_path):
    hub = FakeHub(some_files())
    with hub.serve() as endpoint:
        process = command(endpoint, REPO, str(tmp_path / "a b"))
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert held(tmp_path / "a b") == hub.files
    assert f"9 files (761 kB) of {REPO} at {hub.commit[:12]}" in err
    assert err.splitlines()[-1] == f"kimistream: next: kimistream run '{tmp_path / 'a b'}' --prompt Hello"
    assert "NeverShown" not in err


def test_ctrl_c_ends_it_with_130_and_the_next_call_goes_on(tmp_path):
    hub = FakeHub(some_files())
    hub.delay, hub.chunk = 0.1, 4096
    with hub.serve() as endpoint:
        process = command(endpoint, REPO, str(tmp_path))
        deadline = time.monotonic() + 30
        while not hub.sent and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        _, err = process.communicate(timeout=30)
        assert time.monotonic() - started < 3
        assert process.returncode == 130
        assert f"pull stopped; what has arrived stays in {tmp_path}" in err
        assert "Traceback" not in err
        hub.delay = 0
        assert command(endpoint, REPO, str(tmp_path), "--quiet").communicate(timeout=60) == ("", "")
    assert held(tmp_path) == hub.files


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--layers", "7-3"], "--layers 7-3: must be FIRST-LAST"),
        (["--layers", "x"], "--layers x: must be FIRST-LAST"),
        (["--only", "audio"], "--only audio: must be text"),
        (["--workers", "0"], "--workers 0: must be 1 to 64"),
        (["--only", "text", "--files", "config.json"], "--files excludes --only and --layers"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(tmp_path, capsys, arguments, text):
    from kimistream.cli.app import run_app

    assert run_app(["pull", REPO, str(tmp_path / "x"), *arguments]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
