"""Whatever stands behind an option: success or one refusal with its remedy, never a traceback."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from kimistream.checkpoint.table import Checkpoint
from kimistream.cli.app import run_app

VALUES = [
    "", "abc", "-1", "0", "1e3", "1.5", "nan", "inf", "9" * 30, "9" * 5000, "\x00", "\udcff", "é", "-", "8GB",
    "1" + "0" * 40 + "GB", "9" * 5000 + "GB", "0.0000000000001B", "/nonexistent/x", "/", "/dev/null", "[1]",
    "[" * 100000, "1:2", "5,5", "-1,2", "9" * 22, "0-0", "5-2", "json",
]  # fmt: skip
RUN = "run demo --prompt Hi --max-tokens 2 --memory 1MB -q"
"""Refused by its budget at last, once all else is accepted."""
SAMPLING = ("temperature", "top-p", "top-k", "min-p", "repetition-penalty", "presence-penalty")
COMMANDS = {
    RUN: (
        *SAMPLING,
        "frequency-penalty",
        "logit-bias",
        "seed",
        "stop",
        "session",
        "pack",
        "logits",
        "logprobs",
    ),
    f"{RUN} --json": ("logprobs",),
    f"{RUN} --chat": ("tools", "format", "think", "system", "session", "ids"),
    "run demo --prompt Hi -q": ("memory --context 8", "context", "chunk", "threads", "max-tokens"),
    "run demo --memory 1MB -q": ("ids", "prompt-file", "prompt", "session"),
    "chat demo --memory 1MB -q": ("tools", "format", "think", "session", "context", "max-tokens"),
    "plan demo --no-measure": ("memory", "context", "prompt-tokens", "chunk", "snapshots"),
    "tokenize demo": ("text", "file", "decode"),
    "render demo": ("messages", "tools", "format", "think"),
    "verify demo -q": ("workers", "memory"),
    "pack demo out.pack --memory 1MB -q": ("threads",),
    "pack demo out.pack -q": ("memory --threads 0",),
    "synth /nonexistent/never": ("layers", "experts", "vocab", "hidden", "mla", "seed", "threads"),
    "pull /nonexistent/never": ("only", "layers", "workers"),
}
FIRST = (
    "run",
    "chat",
    "plan",
    "tokenize --text Hi",
    "verify",
    "pack out",
    "render --messages -",
    "synth",
    "pull",
)


def refused_or_done(arguments: list[str], capsys, monkeypatch) -> int:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[]")))
    code = run_app(arguments)
    told = capsys.readouterr().err.strip()
    assert code in (0, 1, 2), arguments
    if code:
        assert told.startswith("kimistream: "), told
        assert told.count("\n") >= 1, f"no remedy: {told}"
        assert "Traceback" not in told
    return code


@pytest.fixture(autouse=True)
def offline_in_a_directory_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)  # some values are the names of files that are written


@pytest.mark.parametrize(
    ("command", "option"), [(command, option) for command, each in COMMANDS.items() for option in each]
)
def test_no_value_of_an_option_ends_in_a_traceback(command, option, capsys, monkeypatch):
    name, *more = option.split()
    skip = {"context": ("8GB",), "memory": ("8GB",)}.get(name, ())
    for value in VALUES:
        small = command.startswith("run demo --prompt Hi -q") and name != "memory"
        limit = ["--memory", "1MB"] if small else []
        if value not in skip:
            refused_or_done([*command.split(), f"--{name}", value, *more, *limit], capsys, monkeypatch)


@pytest.mark.parametrize("command", FIRST)
def test_no_path_ends_in_a_traceback(command, capsys, monkeypatch):
    name, *more = command.split()
    for value in ("", "\x00", "9" * 5000, "/dev/null", "/dev/null/x", "\udcff"):
        assert refused_or_done([name, value, *more], capsys, monkeypatch) in (1, 2)


def test_a_command_that_there_is_not_is_answered_with_where_to_look(capsys):
    assert run_app(["dance"]) == 2
    assert "kimistream --help" in capsys.readouterr().err


def test_memory_that_the_system_does_not_give_is_told_with_the_option(capsys, monkeypatch):
    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 9.31 GiB")

    monkeypatch.setattr(Checkpoint, "open", no_memory)
    assert run_app(["plan", "demo"]) == 1
    told = capsys.readouterr().err
    assert "no more memory: Unable to allocate 9.31 GiB" in told
    assert "--memory" in told


def kimistream(*arguments: str, **more: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "kimistream", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, timeout=60, **more)  # type: ignore[call-overload]


def test_a_full_disk_under_stdout_is_one_message_and_not_zero():
    with open("/dev/full", "wb") as full:
        ended = kimistream("tokenize", "demo", "--text", "Hi", stdout=full)
    assert ended.returncode == 1
    assert b"the output cannot be written: No space left on device" in ended.stderr
    assert b"Traceback" not in ended.stderr
    assert ended.stderr.count(b"\n") == 2


def test_a_text_that_the_terminal_cannot_show_is_spelled_out():
    ended = kimistream(
        *("render", "demo", "--messages", "-", "--text"),
        input='[{"role": "user", "content": "caf\u00e9"}]'.encode(),
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert ended.returncode == 0, ended.stderr
    assert b"caf\\xe9" in ended.stdout
