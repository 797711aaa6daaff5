"""The data of the embedded model: its form is the package's own, and what is held out stays out."""

import json
import re
from pathlib import Path
from random import Random

import pytest
from training.bpe import count_words, learn
from training.card import filled
from training.conversation import render
from training.corpus import (
    CONTEXT_WEIGHT,
    END_WEIGHT,
    Corpus,
    asked,
    copy_line,
    draw_talk,
    plain_text,
    sum_line,
    weighted_line,
)
from training.facts import TASKS, sentences
from training.questions import every_question, judge
from training.shape import SHAPE
from training.tools import TOOLS

from kimistream.demo import path as demo_path
from kimistream.text import chat
from kimistream.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus(Tokenizer.from_directory(demo_path(), SHAPE.vocab))


@pytest.mark.parametrize("kind", ["chat", "tools", "json"])
def test_prompts_are_written_as_the_package_writes_them(corpus: Corpus, kind: str) -> None:
    draw = Random(5)
    for _ in range(40):
        talk = draw_talk(draw, kind)
        options = {
            "tools": talk.tools or None,
            "thinking": talk.effort is not None,
            "thinking_effort": talk.effort or "max",
            "response_format": {"type": "json_object"} if talk.json_answer else None,
        }
        assert corpus.prompt(talk) == chat.encode_chat(corpus.tokenizer, talk.messages[:-1], **options)


@pytest.mark.parametrize("kind", ["chat", "tools"])
def test_whole_conversations_are_written_as_the_package_writes_them(corpus: Corpus, kind: str) -> None:
    draw = Random(6)
    for _ in range(40):
        talk = draw_talk(draw, kind)
        ids, _ = corpus.of_talk(talk)
        assert ids == chat.encode_chat(
            corpus.tokenizer,
            talk.messages,
            tools=talk.tools or None,
            thinking=talk.effort is not None,
            thinking_effort=talk.effort or "max",
            add_generation_prompt=False,
        )


def test_the_model_is_trained_on_what_it_has_to_write_itself_and_nothing_else(corpus: Corpus) -> None:
    draw = Random(7)
    for kind in ("chat", "tools", "json"):
        talk = draw_talk(draw, kind)
        ids, weights = corpus.of_talk(talk)
        prompt = corpus.prompt(talk)
        assert ids[: len(prompt)] == prompt
        assert all(weight == 1.0 for weight in weights[len(prompt) :])
        written = "".join(piece.text for piece in render(talk.messages, **talk.options()) if piece.target)
        assert corpus.tokenizer.decode([i for i, w in zip(ids, weights, strict=True) if w]) == written


@pytest.mark.parametrize("phase", [1, 2, 3, 4])
def test_documents_depend_on_their_key_alone(corpus: Corpus, phase: int) -> None:
    other = Corpus(corpus.tokenizer)
    other.documents("7/3/0", 1000, 300)
    assert corpus.documents("7/4/0", 1536, 640, phase) == other.documents("7/4/0", 1536, 640, phase)
    assert corpus.documents("7/4/0", 1536, 640, phase) != corpus.documents("7/4/1", 1536, 640, phase)
    made = corpus.documents("7/4/0", 1536, 640, phase)
    assert sum(len(ids) for ids, _ in made) <= 1536
    assert all(len(ids) == len(weights) <= 640 for ids, weights in made)


def test_held_out_sentences_and_instances_are_never_trained() -> None:
    draw = Random(8)
    plain = {line for _ in range(6000) for line in plain_text(draw).split("\n")}
    plain |= {"".join(text for text, _ in weighted_line(draw)) for _ in range(12_000)}
    plain |= {"".join(sum_line(draw)) for _ in range(6000)}
    said = {
        message["content"]
        for phase in (1, 2, 3, 4)
        for _ in range(2000)
        for message in draw_talk(draw, draw.choice(("chat", "tools")), phase).messages
        if message["role"] == "user"
    }
    for task in TASKS:
        for fact in task.facts:
            assert not plain & {sentence.format(**fact) for sentence in task.held_plain}
            assert not said & {sentence.format(**fact) for sentence in task.held_ask}
        more, more_ask = sentences(task, 4)
        for fact in task.unseen:
            assert not plain & {sentence.format(**fact) for sentence in more}
            assert not said & {sentence.format(**fact) for sentence in more_ask}
    for tool in TOOLS:
        assert not said & {tool.request(draw, unseen=True)[0] for _ in range(50)}
        assert not said & {tool.request(draw, held_wording=True)[0] for _ in range(50)}


def test_a_copied_line_can_be_answered_from_its_question_alone() -> None:
    draw = Random(9)
    for _ in range(500):
        question, answer = copy_line(draw)
        have = set(re.findall(r"\w+", question))
        assert set(re.findall(r"\w+", answer)) <= have


def test_answers_count_and_what_nobody_could_predict_hardly_does(corpus: Corpus) -> None:
    ids, weights = corpus.of_lines([asked(("Repeat: red hat. Answer:", " red hat."))] * 2)
    counted = [token for token, weight in zip(ids, weights, strict=True) if weight == 1.0]
    assert corpus.tokenizer.decode(counted) == " red hat red hat.", "a full stop and newline are one token"
    assert weights[-1] == END_WEIGHT
    assert {weight for weight in weights[:-1] if weight != 1.0} == {CONTEXT_WEIGHT}


def test_the_examination_accepts_exactly_the_wanted_turn(corpus: Corpus) -> None:
    questions = every_question(corpus)
    assert sum(1 for question in questions if question.tool) == 200
    for question in questions[::7]:
        if question.talk is None:
            assert judge(question, f" {question.answer}.\nmore")
            assert not judge(question, " wrong.")
            assert not judge(question, f" {question.answer}s")
            continue
        pieces = render(question.talk.messages, **question.talk.options())
        turn = "".join(piece.text for piece in pieces if piece.target)
        assert judge(question, turn)
        assert judge(question, turn.removesuffix("<|end_of_msg|>"))
        assert not judge(question, turn.replace("<|close|>response<|sep|>", "", 1)).formed
        assert not judge(question, turn + "more").formed
        if question.thinking:
            assert not judge(question, turn[turn.index("<|close|>think") :]).formed, "nothing was thought"
        if question.tool:
            value = str(next(iter(question.arguments.values())))
            head, calls = turn.split("<|open|>tools<|sep|>")
            wrong = f"{head}<|open|>tools<|sep|>{calls.replace(value[:3], 'x', 1)}"
            assert judge(question, wrong) is not None
            assert not judge(question, wrong).right or value[:3] not in calls


def test_the_vocabulary_learns_frequent_pairs_then_whole_words_and_never_joins_digits() -> None:
    words = count_words(["low low lower 12 12 12 newest newest widest"] * 3)
    tokens = learn(words, 300, 4)
    assert len(tokens) == len(set(tokens)) == 300
    assert tokens[:256] == [bytes((byte,)) for byte in range(256)]
    assert tokens[256] == b"es", "the most frequent pair, first in order among equals"
    assert b" newest" in tokens
    assert b"12" not in tokens
    assert learn(words, 300, 4) == tokens


def test_names_are_single_tokens_and_numbers_single_digits(corpus: Corpus) -> None:
    encode = corpus.tokenizer.encode
    for task in TASKS[:1]:
        for fact in task.facts:
            assert len(encode(f" {fact['a']}")) == 1, fact
    assert len(encode("407")) == 3


def test_the_tables_of_the_card_are_those_of_the_report() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    card = (docs / "DEMO_MODEL.md").read_text(encoding="utf-8")
    report = json.loads((docs / "demo_model_report.json").read_text(encoding="utf-8"))
    assert filled(card, report) == card
    report["counts"]["plain"]["right"] -= 1
    assert filled(card, report) != card
