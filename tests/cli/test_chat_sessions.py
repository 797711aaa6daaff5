"""Conversations and texts put away in session files by `chat` and `run`, and taken up again."""

from __future__ import annotations

import json
import re

from command_line import QUICK, call

from kimistream.engine.session_file import FORMAT


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
