"""The pack: how fast it is made, and what it saves while the disk is the limit and while memory is.

usage: python benchmarks/pack.py DIR [--out FILE] [--pairs 5] [--tokens 6] [--part make|run|resident]

Without --out the pack is made beside the checkpoint and deleted. Each pair decodes the same tokens without and with
the pack, in turn, so that a slow minute touches both.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from common import decode, median, parser, rate, reader_rate, real_width, verdict
from kimistream.budget import current_rss, format_size
from kimistream.checkpoint.pack import Pack
from kimistream.checkpoint.table import Checkpoint
from kimistream.engine.deep import cores
from kimistream.engine.model import Model
from kimistream.engine.pack_cut import Cut
from kimistream.engine.packing import Packing
from kimistream.stream.arena import Arena
from kimistream.stream.writer import Writer

SPARE = 900 << 20
"""What a model holds beside its tape, about, some experts included."""
WRITTEN = 2 << 30
STEP = 32 << 20


def write_rate(directory: Path) -> float:
    """Bytes per second of direct writes of a new file, until they are on the disk."""
    path = directory / "kimistream-write.bin"
    with Arena(2 * STEP) as arena:
        arena.array(0, arena.nbytes)[:] = np.random.default_rng(1).integers(0, 256, arena.nbytes, np.uint8)
        started = time.perf_counter()
        try:
            with Writer(path) as writer:
                tickets = []
                for n in range(WRITTEN // STEP):
                    if n >= 2:
                        tickets[n - 2].wait()
                    tickets.append(writer.submit(n * STEP, arena.view(n % 2 * STEP, STEP)))
                for ticket in tickets:
                    ticket.wait()
                writer.sync()
            return WRITTEN / (time.perf_counter() - started)
        finally:
            path.unlink(missing_ok=True)


def make(checkpoint: Checkpoint, out: Path) -> None:
    """Pack, beside what the disk reads and writes in the same minute."""
    before = reader_rate(checkpoint), write_rate(out.parent)
    made = Packing(checkpoint, out, memory="2GB").run()
    after = reader_rate(checkpoint), write_rate(out.parent)
    read, write = ((a + b) / 2 for a, b in zip(before, after, strict=True))
    packed = made.source_bytes / made.seconds
    bits = 16 * made.nbytes / made.source_bytes
    print(
        f"packed {format_size(made.source_bytes)} into {format_size(made.nbytes)} ({bits:.2f} bits a weight) in "
        f"{made.seconds:.1f} s: {rate(packed)}, {rate(packed / cores())} a core; disk reads {rate(read)}, writes "
        f"{rate(write)}"
    )
    verdict("packing against the slower of reading and writing", packed / min(read, write), 0.8, least=True)
    verdict("or MB/s a core", packed / cores() / 1e6, 300, least=True)


def seconds(
    checkpoint: Checkpoint, pack: Pack | None, budget: int, tokens: int, warm: int
) -> tuple[float, str]:
    """Seconds a token, and where they went."""
    with Model.open(checkpoint, pack=pack, memory=budget, context=64, prompt=1) as model:
        cost = decode(model, tokens, warm=warm)
    words = (
        f"{cost.seconds / tokens:.3f} s/token, {format_size(cost.nbytes / tokens)} at "
        f"{rate(cost.nbytes / cost.seconds)}, waiting {cost.wait / cost.seconds:.0%}"
    )
    return cost.seconds / tokens, words


def least(checkpoint: Checkpoint, pack: Pack) -> int:
    """A budget just above the least with and without the pack; this process grows with each model it opens."""
    return (12 << 20) + max(
        Model.least_budget(checkpoint, context=64, prompt=1, pack=each) for each in (None, pack)
    )


def pairs(
    checkpoint: Checkpoint, pack: Pack, memory: int | None, count: int, tokens: int, warm: int
) -> float:
    """The median ratio of s/token with the pack to that without; memory None: the least."""
    ratios = []
    for n in range(count):
        found: dict[bool, float] = {}
        budget = memory or least(checkpoint, pack)
        for with_pack in (n % 2 == 0, n % 2 == 1):
            found[with_pack], words = seconds(checkpoint, pack if with_pack else None, budget, tokens, warm)
            print(f"    {'with   ' if with_pack else 'without'} {words}", flush=True)
        ratios.append(found[True] / found[False])
    return median(ratios)


def resident(checkpoint: Checkpoint, pack: Pack, count: int, tokens: int) -> float:
    """The median ratio of computing seconds a token, both tapes in memory, both models open, in turn."""
    ratios = []
    with ExitStack() as stack:
        models = {}
        for each in (pack, None):
            tape = pack.size if each is not None else Cut(checkpoint).nbytes
            budget = current_rss() + tape + tape // 50 + SPARE
            options = {"memory": budget, "context": 64, "prompt": 1}
            models[each is not None] = stack.enter_context(Model.open(checkpoint, pack=each, **options))
        for model in models.values():
            print(f"  resident: {model.plan.resident}, {format_size(model.plan.pinned_bytes)}")
            decode(model, 3)
        for n in range(count):
            found = {}
            for with_pack in (n % 2 == 0, n % 2 == 1):
                cost = decode(models[with_pack], tokens, warm=0)
                found[with_pack] = (cost.seconds - cost.wait) / tokens
            ratios.append(found[True] / found[False])
            print(f"    with {found[True]:.3f} s/token, without {found[False]:.3f}", flush=True)
    return median(ratios)


def main() -> None:
    options = parser(__doc__ or "", pack=False)
    options.add_argument("--out", type=Path, help="keep the pack in this file; one that is there is used")
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("--tokens", type=int, default=6)
    options.add_argument("--part", choices=("make", "run", "resident"), help="only this one")
    arguments = options.parse_args()
    checkpoint = real_width(arguments.directory)
    out = arguments.out or arguments.directory.with_name(f"{arguments.directory.name}-{os.getpid()}.pack")
    part = arguments.part
    try:
        if part in (None, "make") or not out.exists():
            if out.exists():
                print(f"{out} is there: not made again")
            else:
                make(checkpoint, out)
        pack = Pack.open(out, checkpoint)
        if part in (None, "run"):
            budget = format_size(least(checkpoint, pack))
            print(f"the disk is the limit: {budget}, plain reader {rate(reader_rate(checkpoint))}")
            ratio = pairs(checkpoint, pack, None, arguments.pairs, arguments.tokens, 1)
            verdict("s/token with the pack against without", ratio, 0.82, least=False)
        if part in (None, "resident"):
            ratio = resident(checkpoint, pack, 2 * arguments.pairs, arguments.tokens)
            verdict("computing seconds a token with the pack against without", ratio, 1.0, least=False)
    finally:
        if arguments.out is None:
            out.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
