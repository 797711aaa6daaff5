"""The examination through the engine: `python -m training.evaluate --checkpoint DIR --report FILE`.

Knows: how to ask an open model many questions at once, what is counted.
Does not know: the questions' sentences (`questions`), PyTorch.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from kimistream.engine.model import Model
from kimistream.model.forward import Taps
from kimistream.model.rows import Run
from kimistream.text.tokenizer import Tokenizer
from training.corpus import Corpus
from training.questions import Question, every_question, judge

ROWS = 512
"""Rows of a pass."""
TOGETHER = 64
"""Questions worked on at once."""
LONGEST = 100
"""Tokens of an answer."""


class Routing:
    """Which experts were used, and how many of a position's experts its predecessors used."""

    def __init__(self, layers: int, experts: int) -> None:
        self.used = np.zeros((layers, experts), np.int64)
        self.shared = 0.0
        self.pairs = 0
        self.union: dict[int, list[float]] = defaultdict(list)

    def add(self, routed: list[np.ndarray]) -> None:
        """routed: per MoE layer the experts of one document's positions, int32 `[T, k]`."""
        for layer, ids in enumerate(routed):
            np.add.at(self.used[layer], ids.ravel(), 1)
            sets = [set(row) for row in ids.tolist()]
            k = ids.shape[1]
            for before, here in pairwise(sets):
                self.shared += len(before & here) / k
                self.pairs += 1
            for n in (2, 4, 8, 12):
                for at in range(0, len(sets) - n + 1, n):
                    self.union[n].append(len(set().union(*sets[at : at + n])) / (k * n))

    def report(self) -> dict[str, Any]:
        share = self.used / self.used.sum(1, keepdims=True)
        return {
            "expert_share": np.round(share, 4).tolist(),
            "shared_with_previous": round(self.shared / max(1, self.pairs), 4),
            "union": {str(n): round(float(np.mean(values)), 4) for n, values in self.union.items()},
        }


def answer_all(model: Model, prompts: list[list[int]], stops: frozenset[int], limit: int) -> list[list[int]]:
    """Greedy answers to all prompts, a pass for each token of all of them."""
    states = [model.new_state(len(prompt) + limit) for prompt in prompts]
    out: list[list[int]] = [[] for _ in prompts]
    for prompt, state, ids in zip(prompts, states, out, strict=True):
        logits = model.forward.run([Run(state, np.asarray(prompt, np.int32))], more=True)
        ids.append(int(np.argmax(logits[-1])))
    while True:
        live = [i for i, ids in enumerate(out) if ids[-1] not in stops and len(ids) < limit]
        if not live:
            return out
        runs = [Run(states[i], np.asarray(out[i][-1:], np.int32)) for i in live]
        for i, row in zip(live, model.forward.run(runs, more=True), strict=True):
            out[i].append(int(np.argmax(row)))


def examine(
    model: Model, tokenizer: Tokenizer, questions: list[Question]
) -> tuple[dict[str, Any], list[str]]:
    """Counts by kind and by kind and task, and one line for each wrong answer."""
    stops = frozenset({tokenizer.special["[EOS]"], tokenizer.special["<|end_of_msg|>"]})
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    wrong: list[str] = []
    order = sorted(questions, key=lambda question: (question.thinking is not None, len(question.prompt)))
    for first in range(0, len(order), TOGETHER):
        group = order[first : first + TOGETHER]
        limit = LONGEST if group[-1].thinking is not None else 32
        answers = answer_all(model, [question.prompt for question in group], stops, limit)
        for question, ids in zip(group, answers, strict=True):
            text = tokenizer.decode(ids)
            verdict = judge(question, text)
            for key in (question.kind, f"{question.kind}/{question.task}"):
                counts[key][0] += 1
                counts[key][1] += verdict.formed
                counts[key][2] += bool(verdict)
            if not verdict:
                wrong.append(f"{question.kind}/{question.task}: {question.shown!r} -> {text!r}")
    return {
        key: {"asked": asked, "formed": formed, "right": right}
        for key, (asked, formed, right) in sorted(counts.items())
    }, wrong


def watch_routing(model: Model, questions: list[Question]) -> dict[str, Any]:
    """Expert use over a sample of prompts."""
    routing = Routing(len(model.config.moe_layers), model.config.moe.num_experts)
    for question in questions:
        taps = Taps()
        model.forward.run(
            [Run(model.new_state(len(question.prompt)), np.asarray(question.prompt, np.int32))], taps=taps
        )
        routing.add(taps.routed)
    return routing.report()


def main() -> None:
    parser = argparse.ArgumentParser(description="Examine a checkpoint through the engine.")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--wrong", type=Path)
    parser.add_argument("--every", type=int, default=1, help="ask one question in so many")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    started = time.monotonic()
    with Model.open(
        options.checkpoint, memory="3GB", context=512, chunk=ROWS, sequences=TOGETHER, threads=options.threads
    ) as model:
        tokenizer = Tokenizer.from_directory(options.checkpoint, model.config.vocab_size)
        questions = every_question(Corpus(tokenizer))[:: options.every]
        counts, wrong = examine(model, tokenizer, questions)
        talks = [question for question in questions if question.talk is not None]
        routing = watch_routing(model, talks[:: max(1, len(talks) // 100)])
    report = {"counts": counts, "routing": routing, "seconds": round(time.monotonic() - started, 1)}
    options.report.write_text(json.dumps(report, indent=1) + "\n")
    if options.wrong:
        options.wrong.write_text("\n".join(wrong) + "\n")
    for key, value in counts.items():
        print(f"{key:30s} {value['right']:4d} of {value['asked']:4d} right, {value['formed']:4d} well formed")


if __name__ == "__main__":
    main()
