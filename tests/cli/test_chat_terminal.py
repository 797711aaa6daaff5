"""A chat on a terminal, held as a person would."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path

import pexpect
from command_line import call, last_message, note, tensors

from kimistream.cli.line_input import state_directory

PROMPT = re.escape("\x1b[?2004h") + "[^>]*>"
"""The terminal is asked to mark pasted text, and the prompt appears."""


class Person:
    """Somebody who types at `kimistream chat` on a pseudo-terminal."""

    def __init__(self, home: Path, *arguments: str) -> None:
        # COLUMNS wide enough that no line is wrapped; a quiet prompt_toolkit
        env = os.environ | {"XDG_STATE_HOME": str(home), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.screen = io.StringIO()
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "kimistream", "chat", *arguments],
            env=env,
            encoding="utf-8",
            codec_errors="replace",
            timeout=90,
            dimensions=(40, 200),
        )
        self.child.logfile_read = self.screen
        self.child.expect("/help for help")

    def types(self, text: str) -> None:
        """Wait for the prompt and type a line."""
        self.child.expect(PROMPT)
        self.child.send(text + "\r")

    def sees(self, pattern: str) -> re.Match[str]:
        self.child.expect(pattern)
        match = self.child.match
        assert isinstance(match, re.Match)
        return match

    def leaves(self) -> int:
        """Ctrl-D at the prompt; the exit code."""
        self.child.expect(PROMPT)
        self.child.send("\x04")
        self.child.expect(pexpect.EOF)
        self.child.close()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -1)


def test_a_person_talks_stops_undoes_saves_leaves_and_comes_back(tmp_path, monkeypatch, capsys):
    file = tmp_path / "talk.session"
    options = ["demo", "--think", "off", "--session", str(file), "--context", "600"]
    person = Person(tmp_path, *options, "--memory", "2GB", "-n", "8")
    person.types("hello")
    person.sees(r"\d tokens in")
    person.types("a mistake")
    person.sees(r"\d tokens in")
    person.types("/undo")
    person.sees("took back: a mistake")
    person.types("two\\\rlines")
    person.sees(r"\d tokens in")
    person.types("/stats")
    person.sees(r"(\d+) tokens, ended by")
    person.types("/save")
    person.sees(r"saved .*talk\.session: [\d.]+ [kM]B")
    assert person.leaves() == 0
    assert "Traceback" not in person.screen.getvalue()
    assert "two\n" in (state_directory_in(tmp_path) / "history").read_text().replace("+", "")

    # back on another day: one thread, another budget, one more message
    person = Person(tmp_path, *options, "--memory", "700MB", "--threads", "1", "-n", "8")
    person.types("and now?")
    person.sees(r"\d tokens in")
    person.types("/stats")
    reused = int(person.sees(r"prompt had \d+ tokens, (\d+) of them")[1])
    assert reused > 0
    assert person.leaves() == 0
    came_back = last_message(file)

    # the same without ever leaving
    other = tmp_path / "other.session"
    arguments = ["chat", "demo", "--think", "off", "--session", str(other), "--context", "600"]
    lines = "hello\na mistake\n/undo\ntwo\\\nlines\nand now?\n"
    code, _, err = call(monkeypatch, capsys, *arguments, "--memory", "2GB", "-n", "8", stdin=lines)
    assert code == 0, err
    assert last_message(other) == came_back
    assert tensors(other) == tensors(file)


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(tmp_path):
    file = tmp_path / "talk.session"
    # one token over and over: an answer that does not end by itself
    endless = ["--logit-bias", "100:100", "--context", "4000"]
    person = Person(tmp_path, "demo", "--think", "off", "--memory", "2GB", "--session", str(file), *endless)
    person.types("hello")
    person.sees(r"token \d+, ")
    person.child.sendintr()
    person.sees("stopped; what was said so far is kept")
    person.types("/stats")
    person.sees("ended by interrupted")
    person.types("again")
    person.sees(r"token \d+, ")
    person.child.sendintr()
    person.sees("stopped")
    person.child.expect(PROMPT)
    person.child.sendintr()
    person.sees("Ctrl-D or /exit leaves")
    assert person.leaves() == 0
    roles = [m["role"] for m in note(file)["messages"]]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert "Traceback" not in person.screen.getvalue()


def state_directory_in(home: Path) -> Path:
    return home / state_directory().name
