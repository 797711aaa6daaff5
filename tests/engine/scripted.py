"""Answers with known words: a sampler that follows a script, so that tests do not hang on what a model says."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from kimistream.engine.answer import Finished
from kimistream.engine.conversation import Conversation, Step
from kimistream.engine.sampling import Sampler
from kimistream.text.output import Content, Reasoning
from kimistream.text.tokenizer import Tokenizer
from kimistream.text.xtml import CLOSE, END_OF_MESSAGE, OPEN, SEP, Segment, encode_segments

MARKERS = {"{": OPEN, "/": CLOSE, "}": SEP, "$": END_OF_MESSAGE}


def words(tokenizer: Tokenizer, *parts: str) -> list[int]:
    """Ids of text and markers: a part that is one of `{ / } $` is a marker, all others are text."""
    segments = [Segment(MARKERS[p], True) if p in MARKERS else Segment(p) for p in parts]
    return encode_segments(tokenizer, segments)


def said(content: str) -> tuple[str, ...]:
    """The parts of an answer without thinking, as the model was trained to write it."""
    return (content, "/", "response", "}", "/", "message", "}", "$")


def thought(reasoning: str, content: str) -> tuple[str, ...]:
    """The parts of an answer with thinking."""
    return (reasoning, "/", "think", "}", "{", "response", "}", *said(content))


class Scripted(Sampler):
    """Chooses the ids of `script`, whatever the logits are."""

    script: Sequence[int] = ()

    def _pick(self, x: Any, place: int) -> int:
        return self.script[len(self.output)]


def follow(monkeypatch: Any, ids: Sequence[int]) -> None:
    """Let the next answers be these ids."""
    monkeypatch.setattr(Scripted, "script", ids)
    monkeypatch.setattr("kimistream.engine.conversation.Sampler", Scripted)


class Heard:
    """One answer, gathered: its events, how it ended, and its logits."""

    def __init__(self, talk: Conversation, *, until: int | None = None, **options: Any) -> None:
        self.rows: list[np.ndarray] = []
        self.ids: list[int] = []
        self.events: list[Any] = []
        self.finished: Finished | None = None
        steps = talk.answer(**options)
        for step in steps:
            if isinstance(step, Step):
                self.ids.append(step.record.id)
                self.events += step.events
                if until is not None and len(self.ids) == until:
                    steps.close()
                    break
            else:
                self.finished = step
        if self.finished is None:
            self.finished = talk.finished

    @property
    def content(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, Content))

    @property
    def reasoning(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, Reasoning))


def logits_after(talk: Conversation, **options: Any) -> tuple[int, str]:
    """(tokens of the prompt that were not computed again, digest of the logits from the prompt's end on)."""
    rows: list[np.ndarray] = []
    heard = Heard(talk, sink=lambda logits: rows.append(logits.copy()), **options)
    assert heard.finished is not None
    everything = np.concatenate(rows)
    kept = len(heard.ids) + 1 if len(everything) >= len(heard.ids) + 1 else len(everything)
    return heard.finished.usage.reused_tokens, hashlib.sha256(everything[-kept:].tobytes()).hexdigest()
