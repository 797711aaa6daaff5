"""What the embedded model is examined in: prompts as ids, the wanted answer, and how an answer is judged.

Knows: trained and held-out sentences and instances of every task, the shape of a well-formed turn.
Does not know: who answers (`look`: the training code, `evaluate`: the engine).

Kinds: "plain" and "chat" are trained sentences about trained facts; "plain-held" and "chat-held" are
sentences that were never trained, about the same facts; "unseen" are instances that were never trained
(sums, texts); "tool" and "tool-held" are calls with arguments that were never trained, in trained and
in held-out wording; "json" are answers as JSON.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from random import Random
from typing import Any

from training.conversation import render
from training.corpus import Corpus
from training.facts import TASKS
from training.prose import reading
from training.talk import EFFORTS, JSON_ASKS, Talk, ask, call, offered, turn
from training.tools import TOOLS

SEED = "examination"
MOST = 60
"""Questions of one kind about one task."""
TOOL_CALLS = 200


@dataclass
class Question:
    """`answer` is what the text or the response has to hold; for a call, `tool` and `arguments` instead.
    `thinking` says in which form the turn has to come; None for plain text."""

    kind: str
    task: str
    prompt: list[int]
    shown: str
    answer: str = ""
    thinking: bool | None = None
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    talk: Talk | None = None


@dataclass
class Verdict:
    """`formed`: a turn with all its marks (True for plain text); `right`: the answer too."""

    formed: bool
    right: bool

    def __bool__(self) -> bool:
        return self.formed and self.right


def _plain(corpus: Corpus, draw: Random) -> list[Question]:
    out = []
    for task in TASKS:
        for kind, sentences, facts in (
            ("plain", task.plain, task.facts),
            ("plain-held", task.held_plain, task.facts),
            ("unseen", task.plain, task.unseen),
        ):
            for fact in draw.sample(facts, min(MOST, len(facts))):
                sentence = draw.choice(sentences)
                text = sentence[: sentence.rindex("{a}")].rstrip().format(**fact)
                out.append(Question(kind, task.name, corpus.tokenizer.encode(text), text, fact["a"]))
    return out


def _chat(corpus: Corpus, draw: Random) -> list[Question]:
    out = []
    for task in TASKS:
        for kind, sentences in (("chat", task.ask), ("chat-held", task.held_ask)):
            for fact in draw.sample(task.facts, min(MOST // 2, len(task.facts))):
                talk = Talk(effort=draw.choice(EFFORTS))
                ask(talk, task, fact, draw.choice(sentences))
                out.append(_of_talk(corpus, kind, task.name, talk, fact["a"]))
    for _ in range(MOST):
        text, question, answer = reading(draw, unseen=True)
        talk = Talk(effort=draw.choice(EFFORTS))
        turn(talk, f"{text} {question}", answer, "a text")
        out.append(_of_talk(corpus, "unseen", "reading", talk, answer))
    for name, (key, value, asks) in JSON_ASKS.items():
        task = next(task for task in TASKS if task.name == name)
        for fact in draw.sample(task.facts, 15):
            talk = Talk(effort=draw.choice(EFFORTS), json_answer=True)
            reply = json.dumps({key: fact["x"], value: fact["a"]})
            turn(talk, draw.choice(asks).format(**fact), reply, task.topic)
            out.append(_of_talk(corpus, "json", name, talk, reply))
    return out


def _of_talk(corpus: Corpus, kind: str, task: str, talk: Talk, answer: str) -> Question:
    shown = next(m["content"] for m in reversed(talk.messages) if m["role"] == "user")
    return Question(kind, task, corpus.prompt(talk), shown, answer, talk.effort is not None, talk=talk)


def _calls(corpus: Corpus, draw: Random) -> list[Question]:
    out = []
    for number in range(TOOL_CALLS):
        tool = TOOLS[number % len(TOOLS)]
        held = number % 2 == 1 if number % 16 < 8 else number % 2 == 0
        talk = Talk(effort=draw.choice(EFFORTS), tools=offered(draw, tool))
        request, arguments = tool.request(draw, unseen=True, held_wording=held)
        call(talk, tool, request, arguments)
        question = _of_talk(corpus, "tool-held" if held else "tool", tool.name, talk, "")
        question.tool, question.arguments = tool.name, arguments
        out.append(question)
    return out


def every_question(corpus: Corpus) -> list[Question]:
    """The examination, always the same."""
    draw = Random(SEED)
    return [*_plain(corpus, draw), *_chat(corpus, draw), *_calls(corpus, draw)]


_TURN = r"<\|open\|>response<\|sep\|>(?P<said>[^<]*)<\|close\|>response<\|sep\|>"
_CALLS = r"(?:<\|open\|>tools<\|sep\|>(?P<calls>.*)<\|close\|>tools<\|sep\|>)?"
_END = r"<\|close\|>message<\|sep\|>(?:<\|end_of_msg\|>)?"
THINKING = re.compile(r"(?P<thought>[^<]*)<\|close\|>think<\|sep\|>" + _TURN + _CALLS + _END)
DIRECT = re.compile(r"(?P<said>[^<]*)<\|close\|>response<\|sep\|>" + _CALLS + _END)


def judge(question: Question, text: str) -> Verdict:
    """`text`: what was generated, special tokens spelled (a last end of message may be left out)."""
    if question.thinking is None:
        wanted = re.escape(question.answer)
        return Verdict(True, re.match(rf"\s*{wanted}(?![\w,-])", text) is not None)
    found = (THINKING if question.thinking else DIRECT).fullmatch(text)
    if found is None or (question.thinking and not found["thought"].strip()):
        return Verdict(False, False)
    if question.tool:
        return Verdict(True, (found["calls"] or "") == written_call(question))
    if question.kind == "json":
        return Verdict(True, found["said"] == question.answer)
    wanted = re.escape(question.answer)
    return Verdict(
        True, re.search(rf"(?<![\w,-]){wanted}(?![\w,-])", found["said"], re.IGNORECASE) is not None
    )


def written_call(question: Question) -> str:
    """The wanted call as the format writes it."""
    talk = Talk(effort=None)
    tool = next(tool for tool in TOOLS if tool.name == question.tool)
    call(talk, tool, "", question.arguments)
    text = "".join(piece.text for piece in render(talk.messages, thinking=False))
    return text.split("<|open|>tools<|sep|>")[1].split("<|close|>tools<|sep|>")[0]
