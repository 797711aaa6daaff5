"""How a training run does on its tasks, with the training code alone: `python -m training.look --run DIR`.

Knows: the tasks' questions, and greedy answers by recomputing the whole pass for each token.
Does not know: the engine (`evaluate` asks it; this is for a quick look on the way).
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F

from kimistream.text.tokenizer import Tokenizer
from training.corpus import Corpus
from training.model import Model, Packed, as_stored
from training.questions import Question, every_question, judge
from training.shape import SHAPE


@torch.no_grad()
def answers(
    model: Model, weights: dict[str, torch.Tensor], prompts: list[list[int]], limit: int, stops: set[int]
):
    """Greedy continuations of all prompts, a token each per pass, until a stop or `limit` tokens."""
    out: list[list[int]] = [[] for _ in prompts]
    live = list(range(len(prompts)))
    for _ in range(limit):
        if not live:
            break
        batch = Packed.of([prompts[i] + out[i] for i in live])
        rows = model.hidden_rows(weights, batch)[torch.from_numpy(batch.starts[1:] - 1)]
        for i, token in zip(list(live), F.linear(rows, weights["lm_head"]).argmax(1).tolist(), strict=True):
            out[i].append(token)
            if token in stops:
                live.remove(i)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask a training run a sample of questions.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--limit", type=int, default=70)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = Tokenizer.from_directory(options.run, SHAPE.vocab)
    corpus = Corpus(tokenizer)
    saved = torch.load(options.run / "state.pt")
    questions: list[Question] = Random(11).sample(every_question(corpus), options.count)
    stops = {tokenizer.special["[EOS]"], tokenizer.special["<|end_of_msg|>"]}
    weights = as_stored(saved["masters"])
    found = answers(Model(SHAPE), weights, [q.prompt for q in questions], options.limit, stops)
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for question, ids in zip(questions, found, strict=True):
        ok = bool(judge(question, tokenizer.decode(ids)))
        for key in (question.kind, f"{question.kind}/{question.task}"):
            total[key] += 1
            right[key] += ok
        if options.show and not ok:
            print(repr(question.shown), "->", repr(tokenizer.decode(ids)), "wanted", repr(question.answer))
    print("step", saved["step"])
    for key in sorted(total):
        print(f"{key:40s} {right[key]:4d} of {total[key]:4d}")


if __name__ == "__main__":
    main()
