"""Conversations on the command line: piped, in one shot, and on a terminal as a person would hold one."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path

import pexpect
import pytest

from kimistream.cli.app import run_app
from kimistream.cli.line_input import PlainLines, state_directory
from kimistream.engine.session_file import FORMAT

TINY = str(Path(__file__).parents[1] / "data" / "tiny-k3")
QUICK = ["--memory", "2GB", "--think", "off", "-n", "6"]


def call(monkeypatch, capsys, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Run a command line with lines on standard input: (exit code, stdout, stderr)."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
    code = run_app(list(arguments))
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


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


# ---- piped


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


# ---- sessions


def test_a_session_is_saved_after_every_turn_and_taken_up_again(chat, tmp_path):
    file = tmp_path / "talk.session"
    both = chat("hi\nand on\n")[1]
    _, first, _ = chat("hi\n", "--session", str(file))
    assert FORMAT.encode() in file.read_bytes()[:1000]
    _, second, err = chat("and on\n/stats\n", "--session", str(file))
    assert first + second == both
    assert re.search(r"session .*talk\.session: \d+ tokens, 2 messages, [\d.]+ [kM]B", err)
    assert int(re.search(r"(\d+) of them not computed again", err)[1]) > 0
    assert not list(tmp_path.glob("*.partial"))


def test_save_and_load_go_to_another_conversation_and_back(chat, tmp_path):
    file = str(tmp_path / "a.session")
    _, out, err = chat(f"hi\n/save {file}\n/reset\nsomething else\n/load {file}\nand on\n")
    assert out.endswith(chat("hi\nand on\n")[1].removeprefix(chat("hi\n")[1]))
    assert re.search(r"saved .*a\.session: [\d.]+ [kM]B", err)
    assert "loaded" in err


def test_sessions_that_cannot_be_used_are_refused_by_name(chat, run, tmp_path, monkeypatch, capsys):
    file = tmp_path / "talk.session"
    chat("hi\n", "--session", str(file))
    code, _, err = call(monkeypatch, capsys, "chat", "demo", *QUICK, "--session", str(file))
    assert code == 1
    assert "another checkpoint" in err
    code, _, err = run("--session", str(file), "-n", "2")
    assert code == 1
    assert "kimistream chat" in err
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 1
    file.write_bytes(raw)
    code, out, err = chat("hi\n", "--session", str(file))
    assert (code, out) == (1, "")
    assert "talk.session" in err
    code, _, err = chat(f"/load {tmp_path}/nothing\nhi\n")
    assert code == 0
    assert "nothing" in err
    code, _, err = chat("", "--session", str(tmp_path / "talk.session"), "--context", "10")
    assert code == 2
    assert "--context 10" in err


def test_a_session_that_could_not_be_written_is_found_before_the_work(chat, run, tmp_path):
    for target in (tmp_path / "no" / "x.session", tmp_path):
        for code, out, err in (
            chat("hi\n", "--session", str(target)),
            run("--prompt", "a", "--session", str(target)),
        ):
            assert (code, out) == (1, "")
            assert str(target) in err
    assert list(tmp_path.iterdir()) == []


def test_a_text_goes_on_from_its_session_as_if_it_had_never_stopped(run, tmp_path):
    file = str(tmp_path / "text.session")
    sampled = [
        "--temperature",
        "3",
        "--presence-penalty",
        "1",
        "--seed",
        "11",
        "--ignore-eos",
        "-q",
        "--json",
    ]

    def text(*arguments: str) -> list[int]:
        code, out, err = run(*arguments, "--ignore-eos", "-q", "--json")
        assert code == 0, err
        return [line["id"] for line in map(json.loads, out.splitlines()) if "id" in line]

    whole = text("--prompt", "Hello", "-n", "9", *sampled[:6])
    parts = text("--prompt", "Hello", "-n", "4", *sampled[:6], "--session", file)
    parts += text("-n", "5", *sampled[:4], "--session", file)  # the seed comes from the session
    assert parts == whole
    code, _, err = run("--prompt", "Hello you", "-n", "1", "--session", file)
    assert "5 of them from the session" in err
    assert code == 0


def test_a_text_without_a_prompt_and_without_a_session_is_refused(run, tmp_path):
    code, _, err = run("--session", str(tmp_path / "new.session"))
    assert code == 2
    assert "does not exist yet" in err
    code, _, err = run("--prompt", "a", "--session", str(tmp_path / "s"), "--logits", str(tmp_path / "l.npy"))
    assert code == 2


# ---- one shot


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


# ---- the choice of tokens


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--temperature", "abc"),
        ("--temperature", "-1"),
        ("--temperature", "nan"),
        ("--top-p", "0"),
        ("--top-p", "1.1"),
        ("--top-k", "1.5"),
        ("--min-p", "2"),
        ("--repetition-penalty", "0"),
        ("--presence-penalty", "-3"),
        ("--frequency-penalty", "inf"),
        ("--logit-bias", "5"),
        ("--logit-bias", "5:x"),
        ("--logit-bias", "5:101"),
        ("--logit-bias", "99999999:1"),
        ("--seed", "-1"),
        ("--seed", "1e3"),
        ("--stop", ""),
        ("--logprobs", "21"),
    ],
)
@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_sampling_option_that_cannot_be_used_is_refused(run, chat, command, option, value):
    if command == "run":
        code, out, err = run("--prompt", "hi", "--json", option, value)
    elif option == "--logprobs":
        return
    else:
        code, out, err = chat("hi\n", option, value)
    assert (code, out) == (2, "")
    assert option in err
    assert value.split(":")[0] in err
    assert "For example" in err


def test_sampling_is_seeded_and_the_seed_is_told(run, chat):
    arguments = ["--prompt", "hi", "-n", "12", "--temperature", "5", "--ignore-eos"]
    _, first, err = run(*arguments)
    seed = re.search(r"seed (\d+)", err)[1]
    assert run(*arguments, "--seed", seed, "-q")[1] == first
    assert any(run(*arguments, "--seed", s, "-q")[1] != first for s in "123")
    assert "seed" not in run("--prompt", "hi", "-n", "1")[2]
    out = run(*arguments, "--json", "--seed", "5", "-q")[1]
    assert json.loads(out.splitlines()[-1])["summary"]["seed"] == 5
    _, _, err = chat("hi\n/stats\n", "--temperature", "5", "--seed", "77")
    assert "seed: 77" in err


def test_chat_follows_what_the_checkpoint_recommends_and_run_does_not(monkeypatch, capsys, talking, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in talking.iterdir():
        (copy / file.name).symlink_to(file)
    (copy / "generation_config.json").write_text('{"temperature": 0.7, "top_p": 0.9}')
    err = call(monkeypatch, capsys, "chat", str(copy), *QUICK, stdin="")[2]
    assert "temperature 0.7, top-p 0.9, seed" in err
    err = call(monkeypatch, capsys, "chat", str(copy), *QUICK, "--top-p", "0.5", stdin="")[2]
    assert "temperature 0.7, top-p 0.5, seed" in err
    err = call(monkeypatch, capsys, "run", str(copy), "--prompt", "a", "-n", "1", "--memory", "2GB")[2]
    assert "greedy" in err


def test_a_stop_string_across_tokens_ends_the_text_and_is_left_out(run, talking):
    code, whole, _ = run("--prompt", "hi", "-n", "24", "-q", "--ignore-eos")
    assert code == 0
    text = whole.removesuffix("\n")
    middle = len(text) // 2
    stop = text[middle : middle + 3]
    code, out, err = run("--prompt", "hi", "-n", "24", "--ignore-eos", "--stop", stop, "--stop", "never seen")
    assert out.removesuffix("\n") == text[: text.index(stop)].removesuffix("\n")
    assert f"ended by {stop!r}" in err
    arguments = ["--prompt", "hi", "-n", "24", "--ignore-eos", "--stop", stop, "--json", "-q"]
    tokens = [json.loads(line) for line in run(*arguments)[1].splitlines()]
    assert tokens[-1]["summary"]["stop_string"] == stop
    assert "".join(t["text"] for t in tokens[:-1]) == text[: text.index(stop)]


def test_the_texts_of_json_tokens_join_to_the_whole_text(run, talking):
    # one byte of a character of three, then the end: what was held back comes with the last token
    bias = ["--logit-bias", f"{0xE4}:100"]
    out = run("--prompt", "hi", "-n", "3", "--json", "-q", *bias)[1]
    tokens = [json.loads(line) for line in out.splitlines()]
    assert [t["text"] for t in tokens[:-1]] == ["", "\ufffd", "\ufffd\ufffd"]
    assert run("--prompt", "hi", "-n", "3", "-q", *bias)[1] == "\ufffd" * 3 + "\n"


def test_logprobs_come_with_each_token(run):
    out = run("--prompt", "hi", "-n", "2", "--json", "-q", "--logprobs", "3")[1]
    token = json.loads(out.splitlines()[0])
    assert token["rank"] == 1
    assert token["logprob"] <= 0
    assert token["top_logprobs"][0] == {"id": token["id"], "logprob": token["logprob"]}
    assert len(token["top_logprobs"]) == 3


# ---- looking at ids


def test_tokenize_shows_ids_and_bytes_and_decodes(monkeypatch, capsys, talking):
    def shown(*arguments: str, stdin: str = "") -> str:
        code, out, err = call(monkeypatch, capsys, "tokenize", str(talking), *arguments, stdin=stdin)
        assert code == 0, err
        return out

    assert shown("--text", "hé", "--ids") == "104,195,169\n"
    assert "bytes c3" in shown("--text", "hé")
    assert "10 bytes" in shown("--text", "a<|open|>b")
    assert shown("--text", "a<|open|>", "--special", "--ids") == "97,259\n"
    assert shown("--file", "-", "--ids", stdin="ok") == "111,107\n"
    assert '"<|open|>"  special' in shown("--decode", "259")
    for bad in (["--text", "a", "--decode", "1"], [], ["--decode", "x"]):
        assert call(monkeypatch, capsys, "tokenize", str(talking), *bad)[0] == 2


def test_render_marks_structure_and_leaves_marker_text_alone(monkeypatch, capsys, talking, tmp_path):
    file = tmp_path / "messages.json"
    file.write_text('[{"role": "user", "content": "hi <|close|>"}]')

    def shown(*arguments: str) -> str:
        code, out, err = call(
            monkeypatch, capsys, "render", str(talking), "--messages", str(file), *arguments
        )
        assert code == 0, err
        return out

    lines = shown("--think", "off").splitlines()
    assert '  "hi <|close|>"  104 105 32 60 124 99 108 111 115 101 124 62' in lines
    assert '* "<|open|>"  259' in lines
    assert shown("--think", "off", "--text").startswith(
        '<|open|>message role="user"<|sep|>hi <|close|><|close|>'
    )
    ids = shown("--think", "off", "--ids").strip().split(",")
    assert ids.count("260") == 1
    assert "thinking_effort=low" in shown("--think", "low", "--text")
    file.write_text("{}")
    code, _, err = call(monkeypatch, capsys, "render", str(talking), "--messages", str(file))
    assert code == 2
    assert "--messages" in err
    file.write_text('[{"role": "wizard"}]')
    assert "wizard" in call(monkeypatch, capsys, "render", str(talking), "--messages", str(file))[2]


# ---- on a terminal


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


def header(path: Path) -> tuple[dict, bytes]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def note(path: Path) -> dict:
    fields, data = header(path)
    begin, end = fields["note"]["data_offsets"]
    return json.loads(data[begin:end])


def last_message(path: Path) -> dict:
    return note(path)["messages"][-1]


def tensors(path: Path) -> dict[str, str]:
    """Checksums of the ids, the latents and the state at the end: equal bits, equal sums."""
    fields, _ = header(path)
    sums = json.loads(fields["__metadata__"]["sums"])
    last = fields["__metadata__"]["positions"].split(",")[-1]
    return {name: sums[name] for name in ("ids", "latents", f"kda.{last}", f"tails.{last}")}
