"""Ids, chunking and decoding against the released tokenizer's results."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimistream.errors import TextError
from kimistream.text.decoder import StreamingDecoder
from kimistream.text.pieces import pieces
from kimistream.text.tokenizer import Tokenizer

# Characters, weighted towards those that the split pattern and the length rules tell apart.
WEIRD = st.sampled_from(
    "aZ'sſK你々〇\u3000\u00a0\u0085\u2028\u001c\u001f\u200b\u200d\ufeff\u0301\u0b3e١½Ⅻǅʰªﬁ"
    "\U0001f468\U0001f3fb\U000e0067\U0010ffff\ufffe\U000f0000\ue000\x00\x7f \t\r\n<|>[]"
)
TEXTS = st.lists(st.one_of(WEIRD, st.characters(exclude_categories=("Cs",))), max_size=60).map("".join)
SPELLINGS = st.sampled_from(
    (
        "<|open|>",
        "<|close|>",
        "<|sep|>",
        "<|end_of_msg|>",
        "[EOS]",
        "[BOS]",
        "<|media_pad|>",
        "<osagent_mode>",
    )
)


def u32_sha256(ids: list[int]) -> str:
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


def test_all_vectors_give_the_released_ids(released: Tokenizer, vectors: Callable[[str], Any]) -> None:
    data = vectors("tok_vectors")
    for case in data["golden_third_party"]:
        assert released.encode(case["text"], special=True) == case["special_on"], case["text"]
    for case in data["vectors"]:
        assert released.encode(case["text"], special=True) == case["special_on"], case["text"]
        assert released.encode(case["text"]) == case["special_off"], case["text"]
        assert released.decode(case["special_on"]) == case["text"]
        assert released.decode(case["special_off"]) == case["text"]


def test_a_run_longer_than_the_limit_is_cut_where_the_released_code_cuts(
    released: Tokenizer, vectors: Callable[[str], Any]
) -> None:
    for case in vectors("tok_vectors")["chunk_golden"]:
        parts = pieces(case["text"], max_run=case["max_run"])
        assert [i for part in parts for i in released.encode(part)] == case["ids"], case["text"]


def test_runs_of_more_than_25_000_characters_give_the_released_ids(
    released: Tokenizer, vectors: Callable[[str], Any]
) -> None:
    texts = {
        "x*26000": "x" * 26_000,
        "space*26000": " " * 26_000,
        "han*26000": "好" * 26_000,
        "nbsp_run": "\u00a0" * 25_001 + "y",
    }
    cases = {case["name"]: case for case in vectors("tok_vectors")["long"]}
    for name, text in texts.items():
        ids, case = released.encode(text), cases[name]
        assert len(text) == case["chars"], name
        assert (len(ids), u32_sha256(ids)) == (case["n_ids"], case["sha256_u32le"]), name


def test_a_text_of_more_than_400_000_characters_is_encoded_in_blocks(released: Tokenizer) -> None:
    text = "Hello, 世界 hallowed\n" * 22_000
    assert text[399_997:400_003] == " hallo"
    ids = released.encode(text)
    first, rest = text[:400_000], text[400_000:]
    assert ids == released.encode(first) + released.encode(rest)
    assert released.encode(first[-10:]) + released.encode(rest[:10]) != released.encode(
        first[-10:] + rest[:10]
    )


def plainly_cut(text: str, block: int, run: int) -> list[str]:
    """The rule as it is written down: one character after the other."""
    parts: list[str] = []
    for start in range(0, len(text), block):
        part, count, last = "", 0, None
        for character in text[start : start + block]:
            space = character.isspace()
            count = count + 1 if space == last else 1
            last = space
            if count > run:
                parts.append(part)
                part, count = "", 1
            part += character
        parts.append(part)
    return parts


@given(
    st.text(st.sampled_from("ab \n\u001c\u0085\u200b"), max_size=60), st.integers(1, 20), st.integers(1, 8)
)
def test_pieces_follow_the_rule_character_by_character(text: str, block: int, run: int) -> None:
    assert list(pieces(text, max_block=block, max_run=run)) == plainly_cut(text, block, run)


def test_a_special_spelling_across_a_cut_is_plain_text(released: Tokenizer) -> None:
    text = "x" * 24_998 + "[EOS]"
    assert 163585 not in released.encode(text, special=True)
    assert released.encode("x" * 8 + "[EOS]", special=True)[-1] == 163585
    assert released.decode(released.encode(text, special=True)) == text


def test_a_named_slot_loses_its_reserved_spelling(released: Tokenizer) -> None:
    assert len(released.encode("<|reserved_token_163839|>", special=True)) == 9
    assert released.encode("<|reserved_token_163592|>", special=True) == [163592]
    assert released.encode("<|kimi_image_placeholder|>", special=True) == [
        27, 91, 74, 30223, 11947, 114136, 91, 29,
    ]  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(text=TEXTS)
def test_decoding_gives_back_any_text(released: Tokenizer, small: Tokenizer, text: str) -> None:
    for tokenizer in (released, small):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.decode(tokenizer.encode(text, special=True)) == text


@settings(deadline=None, max_examples=200)
@given(text=st.lists(st.one_of(SPELLINGS, TEXTS), max_size=8).map("".join))
def test_plain_encoding_never_yields_a_special_id(released: Tokenizer, small: Tokenizer, text: str) -> None:
    for tokenizer in (released, small):
        ids = tokenizer.encode(text)
        assert not any(tokenizer.is_special(i) for i in ids)
        assert tokenizer.decode(ids) == text


@settings(deadline=None, max_examples=100)
@given(parts=st.lists(st.one_of(SPELLINGS, st.text("ab <|你", max_size=4)), max_size=8))
def test_special_encoding_finds_each_spelling(small: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    found = [i for i in small.encode(text, special=True) if small.is_special(i)]
    assert found == [small.special[part] for part in parts if part in small.special]


@settings(deadline=None, max_examples=300)
@given(ids=st.lists(st.integers(0, 511), max_size=40), cuts=st.lists(st.integers(0, 40), max_size=6))
def test_streamed_text_is_the_whole_text_for_any_bytes(
    small: Tokenizer, ids: list[int], cuts: list[int]
) -> None:
    for skip in (False, True):
        decoder = StreamingDecoder(small, skip_special=skip)
        edges = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
        parts = [decoder.feed(ids[a:b]) for a, b in pairwise(edges)]
        assert "".join(parts) + decoder.flush() == small.decode(ids, skip_special=skip)


@given(text=TEXTS)
def test_no_replacement_character_appears_while_a_character_is_incomplete(
    small: Tokenizer, text: str
) -> None:
    decoder = StreamingDecoder(small)
    shown = ""
    for token_id in small.encode(text):
        shown += decoder.feed([token_id])
        assert text.startswith(shown)
    assert shown == text
    assert decoder.flush() == ""


def test_an_emoji_over_several_tokens_comes_out_whole(released: Tokenizer) -> None:
    decoder = StreamingDecoder(released)
    ids = released.encode("\U0001f9ff")
    assert len(ids) > 1
    assert [decoder.feed([i]) for i in ids] == [""] * (len(ids) - 1) + ["\U0001f9ff"]


def test_a_cut_character_becomes_a_replacement_character_at_the_end_only(small: Tokenizer) -> None:
    decoder = StreamingDecoder(small)
    assert decoder.feed(small.encode("é")[:1]) == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.feed(small.encode("x")) == "x"


def test_lone_surrogates_become_replacement_characters(released: Tokenizer) -> None:
    assert released.decode(released.encode("a\ud83db")) == "a\ufffdb"
    assert released.decode(released.encode("a\udcffb", special=True)) == "a\ufffdb"


def test_skipping_special_tokens_keeps_the_markers_of_a_message(released: Tokenizer) -> None:
    ids = released.encode("[BOS]<|open|>hi<|sep|><|end_of_msg|>", special=True)
    assert released.decode(ids) == "[BOS]<|open|>hi<|sep|><|end_of_msg|>"
    assert released.decode(ids, skip_special=True) == "<|open|>hi<|sep|>"


def test_ids_outside_the_vocabulary_are_refused_with_its_range(small: Tokenizer) -> None:
    for bad in (512, -1, 2**40):
        with pytest.raises(TextError, match=rf"{bad} is outside .* 0 to 511"):
            small.decode([65, bad])
        with pytest.raises(TextError, match=rf"{bad} is outside"):
            StreamingDecoder(small).feed([bad])


def test_stop_ids_are_the_three_that_end_a_turn(released: Tokenizer) -> None:
    assert released.stop_ids == {163585, 163586, 163593}


def test_text_is_encoded_without_the_network(small: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*args: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert small.decode(small.encode("ok")) == "ok"


def test_long_runs_of_every_kind_do_not_exhaust_the_splitter(released: Tokenizer) -> None:
    for unit in ("A", "a", " ", " \n", "!", "你", "٣", "\u0301", "\u001c!", "'s", "\u001c\u0085"):
        text = (unit * 25_000)[:50_000] + "x"
        assert released.decode(released.encode(text)) == text, unit
