"""Conversations on the command line: piped, and in one shot with `run --chat`."""

from __future__ import annotations

import io
import json
import sys

import pytest
from command_line import QUICK, TINY, call, note

from kimistream.cli.app import run_app
from kimistream.cli.line_input import PlainLines


def test_piped_lines_are_messages_and_stdout_has_the_answers_only(chat):
    code, out, err = chat("hi\nand on\n")
    assert code == 0
    first = chat("hi\n")[1]
    assert first.strip()
    assert out.startswith(first)
    assert len(out) > len(first)
    assert "s/token" in err
    assert chat("hi\n", "-q") == (0, first, "")


def test_a_message_of_several_lines_goes_on_behind_backslashes(chat, capsys):
    assert chat("a\\\nb\n/stats\n")[1] != chat("a\nb\n")[1]
    lines = PlainLines()
    sys.stdin = io.TextIOWrapper(io.BytesIO(b"eins\\\nzwei\\\ndrei\nvier\n\nlast\\"))
    assert [lines.read(""), lines.read(""), lines.read("")] == ["eins\nzwei\ndrei", "vier", ""]
    assert [lines.read(""), lines.read("")] == ["last", None]


def test_input_that_is_not_utf8_is_refused_with_its_line(monkeypatch, capsys, talking):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"/stats\n\xff\xfe\n")))
    assert run_app(["chat", str(talking), *QUICK]) == 2
    assert "line 2" in capsys.readouterr().err


def test_commands_act_and_unknown_ones_are_named(chat):
    _, out, err = chat("/help\n/undo\n/think\n/think low\n/think medium\n/load\n/save\n/bogus\n/exit\nhi\n")
    assert out == ""
    for word in ("/save [FILE]", "no message to take back", "thinking off", "thinking low", "/think medium"):
        assert word in err
    for word in ("/load needs a file", "no file is named", "/bogus is not a command"):
        assert word in err


def test_undo_and_reset_take_back_what_was_said(chat):
    answer = chat("hi\n")[1]
    assert chat("hi\n/undo\nhi\n")[1] == answer * 2
    assert chat("hi\nmore\n/reset\nhi\n")[1].endswith(answer)
    assert "took back: hi" in chat("hi\n/undo\n")[2]


def test_a_line_with_two_slashes_is_said_with_one(chat, tmp_path):
    file = tmp_path / "talk.session"
    chat("//exit now\n", "--session", str(file))
    assert note(file)["messages"][0] == {"role": "user", "content": "/exit now"}


def test_run_chat_puts_content_on_stdout_and_the_rest_on_stderr(run, chat):
    code, out, err = run("--chat", "--prompt", "hi", "--think", "off", "-n", "6")
    assert code == 0
    assert out == chat("hi\n")[1]
    assert "greedy" in err
    code, out, err = run("--chat", "--prompt", "hi", "--think", "low", "-n", "6")
    assert out == ""
    assert code == 0


def test_run_chat_as_json_is_one_object_with_the_message(run):
    code, out, _ = run("--chat", "--prompt", "hi", "--think", "off", "-n", "6", "--json", "-q")
    assert code == 0
    fields = json.loads(out)
    assert fields["message"]["role"] == "assistant"
    assert fields["finish_reason"] in ("stop", "length")
    assert fields["usage"]["completion_tokens"] <= 6


def test_system_tools_format_and_think_change_the_prompt(run, tmp_path):
    tools, schema = tmp_path / "tools.json", tmp_path / "schema.json"
    tools.write_text('[{"type": "function", "function": {"name": "look", "parameters": {}}}]')
    schema.write_text('{"type": "object"}')

    def tokens(*arguments: str) -> int:
        out = run("--chat", "--prompt", "hi", "-n", "1", "--json", "-q", *arguments)[1]
        return json.loads(out)["usage"]["prompt_tokens"]

    plain = tokens("--think", "off")
    assert tokens("--think", "off", "--system", "Be brief.") > plain
    assert tokens("--think", "off", "--tools", str(tools)) > plain
    as_json = tokens("--think", "off", "--format", "json")
    assert tokens("--think", "off", "--format", str(schema)) > as_json > plain
    assert tokens("--think", "low") > plain
    for option, file in (("--tools", schema), ("--format", tools), ("--tools", tmp_path / "none.json")):
        code, _, err = run("--chat", "--prompt", "hi", option, str(file))
        assert code == 2
        assert f"{option} {file}" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--system", "x"], "--system needs --chat"),
        (["--chat", "--logprobs", "2"], "--logprobs cannot be used with --chat"),
        (["--chat", "--ignore-eos"], "--ignore-eos"),
        (["--logprobs", "2"], "--logprobs needs --json"),
        (["--chat", "--think", "medium"], "--think medium"),
    ],
)
def test_options_that_do_not_go_together_are_refused(run, arguments, words):
    code, out, err = run("--prompt", "hi", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert "For example" in err


def test_a_checkpoint_without_a_tokenizer_cannot_talk(monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, "chat", TINY)
    assert code == 1
    assert "tiktoken.model" in err
