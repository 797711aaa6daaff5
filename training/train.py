"""Train the embedded model: `python -m training.train --out DIR`. Seeded, resumable, logged.

Knows: the schedule, the loss, balancing of the experts, what is saved.
Does not know: the forms on disk of a checkpoint (`export`), the tasks, processes (`parts`).

A run is one seed; stopped at any time it goes on from its last save and ends with
the same bytes, whatever the number of processes. `--stop-at` ends it early on the way (for a look), without
changing the schedule.
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
from training.model import Model, Packed, as_stored, initial, parameter_shapes
from training.optimiser import Optimiser
from training.parts import PARTS, Crew, shared_like
from training.shape import SHAPE, Shape

SEED = 7
STEPS = 2680
ROWS, LONGEST = 1536, 640
"""Ids of a part of a step, and of its longest document."""
MUON_RATE, ADAM_RATE = 0.02, 0.02
BALANCE = 0.003
"""How far an expert's bias moves per step, against its load."""
PHASES = (0, 200, 1200, 2550)
"""The step at which each phase of the corpus begins."""
RATES = ((0, 0.05), (20, 1.0), (200, 1.0), (500, 0.6), (2500, 0.45))
"""Step and rate; linear between them."""
COOLING, COLD = (1912.5, 2550), 0.004
"""The steps between which the rate falls from what it is then."""
LAST = ((2550, 0.22), (2680, 0.002))
"""Step and rate of the last phase."""
SAVE_SECONDS = 120


def phase(step: int) -> int:
    return sum(step >= begin for begin in PHASES)


def rate(step: int) -> float:
    """The factor of both rates and of the balancing."""
    if step >= LAST[0][0]:
        (before, low), (after, high) = LAST
        return low + (high - low) * (step - before) / (after - before)
    warm = RATES[-1][1]
    for (before, low), (after, high) in pairwise(RATES):
        if step <= after:
            warm = low + (high - low) * (step - before) / (after - before)
            break
    begin, end = COOLING
    left = (end - step) / (end - begin)
    return warm * left + COLD * (1 - left) if left < 1 else warm


def loss_of(model: Model, weights: dict[str, torch.Tensor], batch: Packed, targets, wanted, loads):
    """Weighted mean cross entropy in nats, the logits of the rows that count, and which rows those are."""
    rows = model.hidden_rows(weights, batch, loads)
    picked = torch.nonzero(wanted > 0)[:, 0]
    logits = F.linear(rows.index_select(0, picked), weights["lm_head"])
    each = F.cross_entropy(logits, targets[picked], reduction="none")
    share = wanted[picked]
    return (each * share).sum() / share.sum(), logits.detach(), picked


def batch_of(corpus: Corpus, key: str, rows: int, phase: int):
    """The documents drawn for `key`: the batch, and per row the next id and its weight."""
    documents = corpus.documents(key, rows, min(LONGEST, rows), phase)
    pad = corpus.tokenizer.special["[PAD]"]
    batch = Packed.of([ids for ids, _ in documents], rows, pad)
    targets = torch.zeros(rows, dtype=torch.int64)
    wanted = torch.zeros(rows)
    row = 0
    for ids, weights in documents:
        targets[row : row + len(ids) - 1] = torch.tensor(ids[1:])
        wanted[row : row + len(ids) - 1] = torch.tensor(weights[1:])
        row += len(ids)
    return batch, targets, wanted


class Run:
    """A training run in the directory `out`: state.pt, log.jsonl, the vocabulary."""

    def __init__(
        self,
        out: Path,
        *,
        seed: int = SEED,
        processes: int = PARTS,
        shape: Shape = SHAPE,
        rows: int = ROWS,
    ) -> None:
        torch.set_num_threads(1)  # and none are started: the helper is forked
        out.mkdir(parents=True, exist_ok=True)
        if not (out / "tiktoken.model").exists():
            make_vocabulary(out, shape, seed)
        self.out, self.seed, self.rows = out, seed, rows
        self.corpus = Corpus(Tokenizer.from_directory(out, shape.vocab))
        self.model = Model(shape, bf16_products=True)
        shapes = parameter_shapes(shape)
        self.masters = shared_like(shapes)
        self.grads = [shared_like(shapes) for _ in range(PARTS)]
        self.optimiser = Optimiser(self.masters)
        self.crew = Crew(self._work, processes)  # before anything is loaded: that may start threads
        self.done = 0
        self._start()

    def _start(self) -> None:
        if not (self.out / "state.pt").exists():
            for name, value in initial(self.model.shape, self.seed).items():
                self.masters[name].copy_(value)
            return
        saved = torch.load(self.out / "state.pt")
        if saved["seed"] != self.seed:
            raise SystemExit(
                f"{self.out}/state.pt is of a run with seed {saved['seed']}, not {self.seed}; choose another --out"
            )
        self.done = saved["step"]
        for name, value in saved["masters"].items():
            self.masters[name].copy_(value)
        for name, value in saved["state"].items():
            self.optimiser.state[name].copy_(value)

    def save(self) -> None:
        part = self.out / "state.part"
        state = {name: value.clone() for name, value in self.optimiser.state.items()}
        masters = {name: value.clone() for name, value in self.masters.items()}
        about = {"step": self.done, "seed": self.seed}
        torch.save({"masters": masters, "state": state, **about}, part)
        os.replace(part, self.out / "state.pt")

    def _work(self, part: int, what: str, step: int):
        return self._gradient(part, step) if what == "gradient" else self._move(part, step)

    def _gradient(self, part: int, step: int) -> tuple[float, float, list[list[int]]]:
        """Loss, share of right guesses and each expert's load; the gradient goes into `grads[part]`."""
        key = f"{self.seed}/{step}/{part}"
        batch, targets, wanted = batch_of(self.corpus, key, self.rows, phase(step))
        weights = {name: value.requires_grad_() for name, value in as_stored(self.masters).items()}
        loads: list[torch.Tensor] = []
        loss, logits, picked = loss_of(self.model, weights, batch, targets, wanted, loads)
        loss.backward()
        for name, value in weights.items():
            if value.grad is not None:  # layer 0 has nothing to mix before its attention
                self.grads[part][name].copy_(value.grad)
        right = (logits.argmax(1) == targets[picked]).float().mean()
        return loss.item(), right.item(), [load.tolist() for load in loads]

    def _move(self, part: int, step: int) -> None:
        first, second = self.grads
        now = rate(step)
        mean = {name: (first[name] + second[name]) * 0.5 for name in self.optimiser.names(part)}
        self.optimiser.step(part, mean, step + 1, MUON_RATE * now, ADAM_RATE * now)

    def _balance(self, loads: list[torch.Tensor], amount: float) -> None:
        """Move each expert's selection bias one step towards an even load (no auxiliary loss)."""
        names = [name for name in self.masters if name.endswith("e_score_correction_bias")]
        for name, load in zip(names, loads, strict=True):
            self.masters[name] += amount * torch.sign(load.mean() - load)

    def one(self) -> dict[str, object]:
        """One step; its line of the log. `cpu` are CPU seconds of all processes, `busy` those of the busiest
        one in each half of the step, `wall` what a clock says (pauses and other work included)."""
        started, step = time.monotonic(), self.done
        parts, cpu, busy = self.crew.call("gradient", step)
        _, more_cpu, more_busy = self.crew.call("move", step)
        loads = [torch.tensor(each).sum(0).float() for each in zip(*(part[2] for part in parts), strict=True)]
        now = rate(step)
        self._balance(loads, BALANCE * now)
        self.done += 1
        line: dict[str, object] = {
            "step": step,
            "loss": round(sum(part[0] for part in parts) / PARTS, 4),
            "right": round(sum(part[1] for part in parts) / PARTS, 4),
            "rate": round(now, 4),
            "top_expert_share": round(max(float(load.max() / load.sum()) for load in loads), 3),
            "cpu": round(cpu + more_cpu, 3),
            "busy": round(busy + more_busy, 3),
            "wall": round(time.monotonic() - started, 2),
        }
        if step % 50 == 49:
            line["loads"] = [[round(float(x), 3) for x in load / load.sum()] for load in loads]
        return line

    def go(self, stop_at: int) -> None:
        """Run to the end or to `stop_at`, and save."""
        last_save = time.monotonic()
        while self.done < min(STEPS, stop_at):
            line = self.one()
            with (self.out / "log.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
            if self.done % 10 == 1:
                print(*(line[key] for key in ("step", "loss", "right", "cpu", "busy", "wall")), flush=True)
            if time.monotonic() - last_save > SAVE_SECONDS:
                self.save()
                last_save = time.monotonic()
        self.save()
        self.crew.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the embedded model.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stop-at", type=int, default=1 << 30, help="end early, the schedule unchanged")
    parser.add_argument("--processes", type=int, choices=(1, PARTS), default=PARTS)
    options = parser.parse_args()
    run = Run(options.out, processes=options.processes)
    run.go(options.stop_at)


if __name__ == "__main__":
    main()
