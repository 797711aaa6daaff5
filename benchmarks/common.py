"""What the end-to-end benchmarks share: the checkpoint to run on, the disk's own rate, the printing.

Every figure is printed beside its limit, measured in the same run. Disk figures come from direct reads:
the page cache is never measured.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from disk import plain_rate, sequential
from kimistream.budget import format_size
from kimistream.checkpoint.synth import synth, synth_sizes
from kimistream.checkpoint.table import Checkpoint
from kimistream.engine.model import Model, Tuning
from kimistream.engine.records import Cost
from kimistream.stream.defaults import REQUEST_BYTES, THREADS_PER_DRIVE

REAL_WIDTH = {"layers": 5, "experts": 64, "vocab": 32768, "mla": [4, 5]}
"""Real widths in 12 GB: `kimistream synth DIR --layers 5 --experts 64 --vocab 32768 --mla 4,5`."""


def parser(description: str, *, pack: bool = True) -> argparse.ArgumentParser:
    """A parser with the options that every end-to-end benchmark has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument(
        "directory", type=Path, help="a synthetic checkpoint; made there if it does not exist"
    )
    if pack:
        options.add_argument("--pack", type=Path, help="a pack of it, for the dense weights")
    return options


def real_width(directory: Path) -> Checkpoint:
    """The checkpoint of real widths, made if it is not there."""
    if not (directory / "config.json").exists():
        print(f"writing a synthetic checkpoint to {directory} ...", flush=True)
        synth(directory, synth_sizes(**REAL_WIDTH))
    return Checkpoint.open(directory)


def reader_rate(checkpoint: Checkpoint, seconds: float = 2.0) -> float:
    """Bytes per second of plain threads reading the shards directly, at the engine's request size and depth."""
    paths = [file.path for file in checkpoint.files]
    sizes = [file.size for file in checkpoint.files]
    # not always the same bytes: a drive's own cache would be measured
    start = int(np.random.default_rng().integers(max(sizes) // REQUEST_BYTES)) * REQUEST_BYTES
    return plain_rate(paths, sequential(sizes, REQUEST_BYTES, start), THREADS_PER_DRIVE, seconds)


@contextmanager
def opened(
    checkpoint: Checkpoint,
    budget: int,
    context: int = 64,
    tuning: Tuning | None = None,
    pack: Path | None = None,
) -> Iterator[Model]:
    """A model within a budget, its memory touched, one token decoded: pinned blocks are filled."""
    with Model.open(checkpoint, memory=budget, context=context, prompt=1, tuning=tuning, pack=pack) as model:
        yield model


def decode(model: Model, tokens: int, warm: int = 1) -> Cost:
    """The cost of `tokens` decode steps after a one-token prompt and `warm` steps."""
    records = list(
        model.generate([1], max_tokens=tokens + warm + 1, ignore_eos=True, state=model.new_state())
    )
    return sum((record.cost for record in records[warm + 1 :]), Cost())


def median(values: list[float]) -> float:
    """The median, for figures of noisy machines."""
    return statistics.median(values)


def rate(nbytes: float) -> str:
    """Bytes per second in words."""
    return f"{format_size(nbytes)}/s"


def verdict(label: str, value: float, bound: float, *, least: bool) -> None:
    """Print a figure beside its bound and whether it holds."""
    holds = value >= bound if least else value <= bound
    sign = ">=" if least else "<="
    print(f"  {label}: {value:.3f} (wanted {sign} {bound:g}) {'ok' if holds else 'NOT MET'}", flush=True)
