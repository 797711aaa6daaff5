"""Train the embedded model: `python -m training.train --out DIR`. Seeded, resumable, logged.

Knows: the schedule, the loss, balancing of the experts, what is saved.
Does not know: the forms on disk of a checkpoint (`export`), the tasks.

A run is one seed and one schedule; stopped at any time it goes on from its last save and ends with
the same weights. `--stop-at` ends it early on the way (for a look), without changing the schedule.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F

from kimistream.text.tokenizer import Tokenizer
from training.corpus import Corpus, make_vocabulary
from training.model import Model, Packed, as_stored, initial
from training.optimiser import Optimiser
from training.shape import SHAPE

SEED = 7
ROWS, LONGEST = 3072, 640
"""Ids of a step, and of its longest document."""
MUON_RATE, ADAM_RATE = 0.02, 0.02
BALANCE = 0.003
"""How far an expert's bias moves per step, against its load."""
PHASES = (0, 240, 493, 820)
"""The step at which each phase of the corpus begins."""
RATES = (
    (0, 0.05),
    (19, 1.0),
    (240, 1.0),
    (241, 0.6),
    (493, 0.444964),
    (747, 0.447487),
    (877, 0.449622),
    (930, 0.45),
    (974, 0.362),
    (1109, 0.005),
)
"""Step and rate; linear between them. The last step ends the training."""
SAVE_SECONDS = 100


def phase(step: int) -> int:
    return sum(step >= begin for begin in PHASES)


def rate(step: int) -> float:
    """The factor of both rates and of the balancing."""
    for (before, low), (after, high) in pairwise(RATES):
        if step <= after:
            return low + (high - low) * (step - before) / (after - before)
    return RATES[-1][1]


def loss_of(model: Model, weights: dict[str, torch.Tensor], batch: Packed, targets, wanted, loads):
    """Weighted mean cross entropy in nats, the logits of the rows that count, and which rows those are."""
    rows = model.hidden_rows(weights, batch, loads)
    picked = torch.nonzero(wanted > 0)[:, 0]
    logits = F.linear(rows.index_select(0, picked), weights["lm_head"])
    each = F.cross_entropy(logits, targets[picked], reduction="none")
    share = wanted[picked]
    return (each * share).sum() / share.sum(), logits.detach(), picked


def batch_of(corpus: Corpus, seed: int, step: int):
    """A step's documents: the batch, and per row the next id and its weight."""
    documents = corpus.documents(seed, step, ROWS, LONGEST, phase(step))
    pad = corpus.tokenizer.special["[PAD]"]
    batch = Packed.of([ids for ids, _ in documents], ROWS, pad)
    targets = torch.zeros(ROWS, dtype=torch.int64)
    wanted = torch.zeros(ROWS)
    row = 0
    for ids, weights in documents:
        targets[row : row + len(ids) - 1] = torch.tensor(ids[1:])
        wanted[row : row + len(ids) - 1] = torch.tensor(weights[1:])
        row += len(ids)
    return batch, targets, wanted


def balance(masters: dict[str, torch.Tensor], loads: list[torch.Tensor], amount: float) -> None:
    """Move each expert's selection bias one step towards an even load (no auxiliary loss)."""
    names = [name for name in masters if name.endswith("e_score_correction_bias")]
    for name, load in zip(names, loads, strict=True):
        load = load.float()
        masters[name] += amount * torch.sign(load.mean() - load)


def save(path: Path, masters, optimiser: Optimiser, step: int) -> None:
    part = path.with_suffix(".part")
    torch.save({"masters": masters, "state": optimiser.state, "step": step}, part)
    os.replace(part, path)


def train(out: Path, stop_at: int, seed: int = SEED) -> None:
    """Run or go on to the end or `stop_at`; the state is `out`/state.pt, the log `out`/log.jsonl."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "tiktoken.model").exists():
        make_vocabulary(out, SHAPE, seed)
    corpus = Corpus(Tokenizer.from_directory(out, SHAPE.vocab))
    model = Model(SHAPE, bf16_products=True)
    masters, begin = initial(SHAPE, seed), 0
    optimiser = Optimiser(masters)
    if (out / "state.pt").exists():
        saved = torch.load(out / "state.pt")
        begin = saved["step"]
        for name, value in saved["masters"].items():
            masters[name].copy_(value)
        for name, value in saved["state"].items():
            optimiser.state[name].copy_(value)
    end = min(RATES[-1][0], stop_at)
    last_save = time.monotonic()
    for step in range(begin, end):
        started = time.monotonic()
        batch, targets, wanted = batch_of(corpus, seed, step)
        weights = {name: value.requires_grad_() for name, value in as_stored(masters).items()}
        loads: list[torch.Tensor] = []
        loss, logits, picked = loss_of(model, weights, batch, targets, wanted, loads)
        loss.backward()
        grads = {name: value.grad for name, value in weights.items() if value.grad is not None}
        now = rate(step)
        optimiser.step(grads, MUON_RATE * now, ADAM_RATE * now)
        balance(masters, loads, BALANCE * now)
        right = (logits.argmax(1) == targets[picked]).float().mean()
        top = max(float(load.max() / load.sum()) for load in loads)
        line = {
            "step": step,
            "loss": round(loss.item(), 4),
            "right": round(float(right), 4),
            "rate": round(now, 4),
            "top_expert_share": round(top, 3),
            "seconds": round(time.monotonic() - started, 2),
        }
        if step % 50 == 49:
            line["loads"] = [[round(float(x), 3) for x in load / load.sum()] for load in loads]
        with (out / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
        if step % 10 == 0:
            print(step, line["loss"], line["right"], line["top_expert_share"], line["seconds"], flush=True)
        if time.monotonic() - last_save > SAVE_SECONDS:
            save(out / "state.pt", masters, optimiser, step + 1)
            last_save = time.monotonic()
    save(out / "state.pt", masters, optimiser, end)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the embedded model.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stop-at", type=int, default=1 << 30)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    train(options.out, options.stop_at)


if __name__ == "__main__":
    main()
