"""Vocabulary files that do not hold are refused, naming the file and the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kimistream.errors import TextError
from kimistream.text.tokenizer import Tokenizer


def edit_line(directory: Path, number: int, line: bytes) -> None:
    path = directory / "tiktoken.model"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = line
    path.write_bytes(b"".join(lines))


def edit_names(directory: Path, names: dict[str, Any]) -> None:
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["added_tokens_decoder"].update(names)
    path.write_text(json.dumps(config))


def refusal(directory: Path, vocab_size: int = 512) -> str:
    with pytest.raises(TextError) as caught:
        Tokenizer.from_directory(directory, vocab_size)
    assert caught.value.remedy
    return caught.value.what


@pytest.mark.parametrize("name", ["tiktoken.model", "tokenizer_config.json"])
def test_a_missing_file_is_named(small_files: Path, name: str) -> None:
    (small_files / name).unlink()
    assert refusal(small_files) == f"{small_files / name} is missing"


@pytest.mark.parametrize(
    "line",
    [
        b"QQ==\n",
        b"QQ== x\n",
        b"QQ== -1\n",
        b"Q 65\n",
        b"Q*Q= 65\n",
        b"QQ== 65 65\n",
        b"\n",
        b" 65\n",
        b"\xff\xfe 65\n",
    ],
)
def test_a_line_that_is_not_a_token_and_its_rank_is_named(small_files: Path, line: bytes) -> None:
    edit_line(small_files, 66, line)
    assert "tiktoken.model, line 66:" in refusal(small_files)


def test_a_pointer_in_place_of_the_file_is_refused(small_files: Path) -> None:
    (small_files / "tiktoken.model").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "line 1: 'version https://" in refusal(small_files)


def test_an_empty_rank_file_is_refused(small_files: Path) -> None:
    (small_files / "tiktoken.model").write_bytes(b"")
    assert "lacks 256 of the 256 single bytes" in refusal(small_files)


def test_ranks_with_a_gap_are_refused_with_the_rank(small_files: Path) -> None:
    edit_line(small_files, 66, b"QQ== 300\n")
    assert "0 to 255" in refusal(small_files)
    assert "300 of b'A' is not below 256" in refusal(small_files)


def test_a_rank_or_a_token_that_comes_twice_is_refused(small_files: Path) -> None:
    edit_line(small_files, 66, b"QQ== 64\n")
    assert "rank 64 of b'A' is used twice" in refusal(small_files)
    edit_line(small_files, 66, b"QA== 65\n")
    assert "line 66: the token b'@' has rank 64 already" in refusal(small_files)


def test_a_vocabulary_without_some_single_byte_is_refused(small_files: Path) -> None:
    edit_line(small_files, 66, b"QUE= 65\n")
    assert "lacks 1 of the 256 single bytes, the first is 0x41" in refusal(small_files)


@pytest.mark.parametrize("vocab_size", [511, 513, 256, 163_840])
def test_a_vocabulary_that_does_not_fit_the_config_is_refused_with_both_sizes(
    small_files: Path, vocab_size: int
) -> None:
    message = refusal(small_files, vocab_size)
    assert "tiktoken.model holds 256 tokens" in message
    assert f"vocab_size {vocab_size:,}" in message


def test_a_rank_file_cut_between_lines_is_refused(small_files: Path) -> None:
    path = small_files / "tiktoken.model"
    path.write_bytes(b"".join([*path.read_bytes().splitlines(keepends=True), b"QUE= 256\n", b"QUI= 257\n"]))
    names = json.loads((small_files / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    moved = {str(int(i) + 2): token for i, token in names.items()}
    (small_files / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": moved}))
    assert Tokenizer.from_directory(small_files, 514).base_size == 258
    path.write_bytes(path.read_bytes()[: -len(b"QUI= 257\n")])
    assert "holds 257 tokens" in refusal(small_files, 514)


@pytest.mark.parametrize("bad_id", [255, 512, -1])
def test_a_special_id_outside_its_block_is_refused(small_files: Path, bad_id: int) -> None:
    edit_names(small_files, {str(bad_id): {"content": "<x>", "special": True}})
    message = refusal(small_files)
    assert "tokenizer_config.json" in message
    assert f"'<x>' has id {bad_id}" in message
    assert "256 to 511" in message


@pytest.mark.parametrize("content", ["[BOS]", "<|reserved_token_400|>", ""])
def test_a_special_spelling_that_is_used_twice_or_empty_is_refused(small_files: Path, content: str) -> None:
    edit_names(small_files, {"390": {"content": content, "special": True}})
    assert f"the spelling {content!r} of special id" in refusal(small_files)


def test_a_special_spelling_that_begins_another_is_refused(small_files: Path) -> None:
    edit_names(small_files, {"390": {"content": "<|op", "special": True}})
    message = refusal_without_remedy(small_files)
    assert "'<|op' (id 390) is the beginning of '<|open|>' (id 259)" in message


def refusal_without_remedy(directory: Path) -> str:
    with pytest.raises(TextError) as caught:
        Tokenizer.from_directory(directory, 512)
    return caught.value.what


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"added_tokens_decoder": {"a": {"content": "x"}}}', '{"added_tokens_decoder": 1}'],
)
def test_a_names_file_of_another_form_is_refused(small_files: Path, text: str) -> None:
    (small_files / "tokenizer_config.json").write_text(text)
    assert "tokenizer_config.json is not a tokenizer config" in refusal(small_files)


def test_unnamed_special_ids_get_the_reserved_spelling(small_files: Path) -> None:
    tokenizer = Tokenizer.from_directory(small_files, 512)
    assert tokenizer.special["<|reserved_token_264|>"] == 264
    assert tokenizer.special_id("<|open|>") == 259
    with pytest.raises(TextError, match=r"no special token '<\|nope\|>'"):
        tokenizer.special_id("<|nope|>")


def test_lines_that_end_in_crlf_or_come_in_another_order_are_read(small_files: Path) -> None:
    path = small_files / "tiktoken.model"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\r\n".join(reversed(lines)))
    assert Tokenizer.from_directory(small_files, 512).encode("AB") == [65, 66]
