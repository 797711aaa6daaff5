"""The choice of tokens on the command line: what is refused, seeds, stop strings, log probabilities."""

from __future__ import annotations

import json
import re

import pytest
from command_line import QUICK, call


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
