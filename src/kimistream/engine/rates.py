"""Two rates of this machine, measured in a second or two: direct reads of this disk, reads of memory.

Knows: that the disk is read as the engine reads it (request size, depth, past the page cache).
Does not know: what is predicted from them (engine.estimate).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kimistream.checkpoint.table import Checkpoint
from kimistream.kernels.probe import memory_read_rate
from kimistream.stream.arena import Arena
from kimistream.stream.defaults import BLOCK_BYTES, RING_BLOCKS
from kimistream.stream.reader import Reader
from kimistream.stream.requests import KIND_TAPE, TAPE, Ticket

_MEMORY = 256 << 20


def disk_rate(checkpoint: Checkpoint, seconds: float = 1.0) -> float:
    """Bytes per second of direct reads from a checkpoint's shards, blocks at places spread over them."""
    return file_rate([file.path for file in checkpoint.files], seconds)


def other_drive_rate(checkpoint: Checkpoint, pack: Path, seconds: float = 1.0) -> float:
    """Bytes per second of direct reads of a pack that lies on another drive than every shard; 0 on one of theirs."""
    drive = pack.stat().st_dev
    if any(file.path.stat().st_dev == drive for file in checkpoint.files):
        return 0.0
    return file_rate([pack], seconds)


def file_rate(paths: Sequence[Path], seconds: float = 1.0) -> float:
    """Bytes per second of direct reads of blocks spread over these files, as the engine reads them."""
    sizes = [path.stat().st_size for path in paths]
    block = min(BLOCK_BYTES, max(sizes))
    places = [(f, at) for f, size in enumerate(sizes) for at in range(0, max(size - block, 0) + 1, block)]
    # no fixed stride: a drive that reads ahead must not be flattered
    order = np.random.default_rng(0).permutation(len(places))
    done = 0
    tickets: list[Ticket] = []
    with Reader(paths) as reader, Arena(RING_BLOCKS * block) as arena:
        started = time.perf_counter()
        n = 0
        while time.perf_counter() - started < seconds:
            if n >= RING_BLOCKS:
                tickets[n - RING_BLOCKS].wait()
                done += block
            file, at = places[order[n % len(order)]]
            view = arena.view(n % RING_BLOCKS * block, block)
            start, _, _ = reader.span(at, block)
            need = min(block, sizes[file] - start)
            tickets.append(reader.submit([(file, start, need, view)], TAPE, KIND_TAPE))
            n += 1
        elapsed = time.perf_counter() - started
        for ticket in tickets[-RING_BLOCKS:]:
            ticket.wait()
    return done / elapsed


def memory_rate() -> float:
    """Bytes per second at which the compute threads read memory."""
    with Arena(_MEMORY) as arena:
        arena.touch()
        return memory_read_rate(arena.array(0, _MEMORY))
