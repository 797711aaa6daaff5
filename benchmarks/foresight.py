"""Reading ahead of the router: how much of a layer's choice is guessed one layer early?

usage: python benchmarks/foresight.py [DIR] [--tokens 60] [--slots 60]

DIR: a checkpoint (default: the embedded trained model, decoding texts of its own kind). Recall is the share of
the experts a token asked for that had been guessed for its layer, beside two guesses that need no computing: the
same layer's experts of the token before, and chance.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from kimistream import demo
from kimistream.engine.model import Model
from kimistream.engine.sizes import Tuning
from kimistream.model.rows import Run

PROMPTS = (
    "The capital of France is",
    "def add(a, b):\n    return",
    "Once upon a time there was a",
    "The opposite of hot is",
)


class Record:
    """The guesses and the requests of each (step, layer), seen where the engine makes them."""

    def __init__(self, model: Model) -> None:
        self.guessed: dict[int, set[int]] = {}
        self.before: dict[int, set[int]] = {}
        self.hits = self.same = self.asked = self.chance = 0.0
        foresight: Any = model.forward._foresight
        if foresight is None:
            raise SystemExit(
                "no guesses are made in this plan: the tape must be resident and the cache partial"
            )
        store: Any = model.experts
        self.experts = model.checkpoint.config.moe.num_experts
        guess, request = foresight.guess, store.request

        def seen_guess(layer: int, count: int) -> Any:
            found = guess(layer, count)
            if found is not None:
                self.guessed[foresight._next[layer]] = set(found.tolist())
            return found

        def seen_request(layer: int, experts: Any) -> Any:
            asked = set(np.asarray(experts).tolist())
            guessed = self.guessed.pop(layer, None)
            before = self.before.get(layer)
            if guessed is not None and before is not None:
                self.hits += len(asked & guessed)
                self.same += len(asked & before)
                self.asked += len(asked)
                self.chance += len(asked) * len(guessed) / self.experts
            self.before[layer] = asked
            return request(layer, experts)

        foresight.guess, store.request = seen_guess, seen_request


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("directory", nargs="?", type=Path, default=demo.path())
    options.add_argument("--tokens", type=int, default=60, help="decoded after each prompt")
    options.add_argument("--slots", type=int, default=60)
    options.add_argument("--memory", default="1GB")
    arguments = options.parse_args()
    tuning = Tuning(slots=arguments.slots)
    with Model.open(arguments.directory, memory=arguments.memory, context=256, tuning=tuning) as model:
        record = Record(model)
        for number, prompt in enumerate(PROMPTS):
            ids = model.tokenizer.encode(prompt) if model.tokenizer else [1 + number, 2, 3]
            state, logits = model.new_state(), np.zeros(1, np.float32)
            for step in range(len(ids) + arguments.tokens):
                token = ids[step] if step < len(ids) else int(np.argmax(logits))
                logits = model.forward.run([Run(state, np.array([token], np.int32), "last")])[-1]
            record.before.clear()
        counters = model.experts.counters
        print(f"{arguments.directory.name}: {record.asked:.0f} experts asked for where a guess had been made")
        for name, hits in (
            ("guessed by the next router", record.hits),
            ("those of the token before", record.same),
            ("chance", record.chance),
        ):
            print(f"  {name:<28} {hits / record.asked:6.1%}")
        share = counters.guessed_right / max(1, counters.guessed)
        print(f"  read on a guess: {counters.guessed}, of which {share:.0%} were used")


if __name__ == "__main__":
    main()
