"""The commands as functions of a test."""

from __future__ import annotations

import pytest
from command_line import QUICK, call


@pytest.fixture
def chat(monkeypatch, capsys, talking):
    """`kimistream chat` with piped lines."""

    def run(stdin: str, *arguments: str) -> tuple[int, str, str]:
        return call(monkeypatch, capsys, "chat", str(talking), *QUICK, *arguments, stdin=stdin)

    return run


@pytest.fixture
def run(monkeypatch, capsys, talking):
    """`kimistream run`."""

    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        return call(monkeypatch, capsys, "run", str(talking), "--memory", "2GB", *arguments, stdin=stdin)

    return run
