"""`kimistream synth`: a checkpoint in the released layout, with random contents, at the disk's rate.

Knows: how to write it so that a killed run is never taken for whole, and to refuse where it has no room.
Does not know: the layout (released.py), the scales (contents.py), what a sparse one keeps (sparse.py).

Large tensors are slices of a few prepared buffers of random numbers, so making them costs nothing beside
writing them; the buffers' lengths are primes, so no two rows of a matrix are equal. Small tensors have
numbers of their own. The bytes depend on the sizes and the seed alone.

Shards are written under temporary names and renamed when they are whole; index and config.json come
last, so that a directory in which a run was killed is refused by `Checkpoint.open`. A marker file allows
the next run to start again there; a directory without it, and not empty, is left alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from kimistream.checkpoint.config import MAX_EXPERTS, MAX_LAYERS, MAX_SIZE, ModelConfig, parse_config
from kimistream.checkpoint.contents import codes, content, exponent_of, key_of, numbers, scale_of, scales
from kimistream.checkpoint.direct import DirectFile
from kimistream.checkpoint.index import INDEX_NAME
from kimistream.checkpoint.released import (
    Placed,
    Sizes,
    Stored,
    Vision,
    config_tree,
    index_pieces,
    place,
    shard,
    shard_count,
    shard_kind,
    shard_name,
)
from kimistream.checkpoint.sparse import real_pieces
from kimistream.errors import Interrupted, OutputError, UsageError

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all), from several threads but never from two at once."""

MARKER = ".kimistream-synth"
SMALL = 1 << 18
"""Up to so many numbers a tensor has its own; above, it is a slice of a shared buffer."""
SPARE = 64 << 20
"""Bytes that have to stay free on the disk."""
_NUMBERS = 2_097_143
_BYTES = 8_388_593
"""Lengths of the shared buffers, both prime: 4 MB of bf16, 8 MB of codes."""


@dataclass(frozen=True, slots=True)
class Written:
    """What `synth` made: `nbytes` as the files' sizes say, `disk_bytes` as the disk counts."""

    directory: Path
    shards: int
    nbytes: int
    disk_bytes: int


def synth_sizes(
    layers: int | None = None,
    experts: int | None = None,
    vocab: int | None = None,
    hidden: int | None = None,
    mla: Sequence[int] | None = None,
    *,
    full: bool = False,
) -> Sizes:
    """The released sizes with some replaced; `full` adds the image tower. Raises UsageError.

    Without `mla` (layers counted from one), every fourth layer and the last are MLA.
    """
    given = {"--layers": layers, "--experts": experts, "--vocab": vocab, "--hidden": hidden}
    limits = {
        "--layers": (1, MAX_LAYERS),
        "--experts": (1, MAX_EXPERTS),
        "--vocab": (512, MAX_SIZE),
        "--hidden": (32, 1 << 16),
    }
    for option, value in given.items():
        low, high = limits[option]
        if value is not None and (isinstance(value, bool) or not low <= value <= high):
            raise UsageError(
                f"{option} {value}: must be from {low} to {high}", f"For example: {option} {_like(option)}"
            )
    sizes = Sizes(vision=Vision() if full else None)
    sizes = replace(
        sizes,
        layers=layers or sizes.layers,
        experts=experts or sizes.experts,
        vocab=vocab or sizes.vocab,
        hidden=hidden or sizes.hidden,
        top_k=min(sizes.top_k, experts or sizes.experts),
    )
    if mla is None:
        return sizes
    for layer in mla:
        if not 1 <= layer <= sizes.layers or list(mla).count(layer) > 1:
            raise UsageError(
                f"--mla {','.join(map(str, mla))}: each layer once, counted from 1 to {sizes.layers}",
                f"For example: --mla {sizes.layers}",
            )
    return replace(sizes, mla_layers=tuple(sorted(mla)))


def _like(option: str) -> int:
    return {"--layers": 5, "--experts": 64, "--vocab": 32768, "--hidden": 7168}[option]


def synth(
    directory: str | Path,
    sizes: Sizes,
    *,
    seed: int = 0,
    sparse: bool = False,
    progress: Progress | None = None,
    threads: int = 2,
) -> Written:
    """Write a checkpoint into `directory`, which must not exist or be empty (or hold a killed run).

    Raises UsageError for sizes that do not fit each other, OutputError when it cannot be written.
    On any failure, and when interrupted, everything that was written is removed.
    """
    job = _Job(Path(directory), sizes, seed, sparse, progress)
    job.prepare()
    try:
        with ThreadPoolExecutor(max_workers=max(1, threads)) as pool:
            futures = [pool.submit(job.write_shard, number) for number in range(1, job.count + 1)]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            except BaseException:
                job.stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return job.finish()
    except OSError as error:
        job.remove()
        raise OutputError(f"{directory} cannot be written: {error.strerror or error}", _room(error)) from None
    except BaseException:
        job.remove()
        raise


def _room(error: OSError) -> str:
    return f"Check the disk's free space and your permissions ({error.__class__.__name__})."


class _Job:
    """One run: where it writes, and how far it is."""

    def __init__(
        self, directory: Path, sizes: Sizes, seed: int, sparse: bool, progress: Progress | None
    ) -> None:
        self.directory = directory
        self.sizes = sizes
        self.seed = seed
        self.sparse = sparse
        self.tree = config_tree(sizes)
        self.config: ModelConfig = parse_config(msgspec.json.encode(self.tree), "the synthetic config.json")
        self.count = shard_count(self.config, sizes)
        self.stop = threading.Event()
        self._progress = progress
        self._lock = threading.Lock()
        self._done = 0
        self._total = 0
        self._needed = 0
        self._made_directory = False
        self._buffers: dict[object, memoryview] = {}

    def names(self) -> list[str]:
        """All files of the checkpoint."""
        shards = [shard_name(number, self.count) for number in range(1, self.count + 1)]
        return [*shards, INDEX_NAME, "config.json"]

    def prepare(self) -> None:
        """Refuse a directory that is in use or too small; remove what a killed run left."""
        if self.directory.exists():
            if not self.directory.is_dir():
                raise OutputError(f"{self.directory} is not a directory", "Name a new directory.")
            held = [path for path in self.directory.iterdir() if path.name != MARKER]
            if held and not (self.directory / MARKER).exists():
                raise OutputError(
                    f"{self.directory} is not empty (it holds {held[0].name})",
                    "Name a new directory, or remove this one first.",
                )
            self.remove()
        needed = self._measure()
        place_ = next(p for p in (self.directory, *self.directory.resolve().parents) if p.exists())
        free = shutil.disk_usage(place_).free
        if needed > free:
            raise OutputError(
                f"{self.directory} needs {needed:,} bytes, the disk has {free:,} free",
                "Free some space, or ask for fewer layers or experts.",
            )
        try:
            self._made_directory = not self.directory.exists()
            self.directory.mkdir(parents=True, exist_ok=True)
            (self.directory / MARKER).write_bytes(b"written while kimistream synth is at work\n")
        except OSError as error:
            raise OutputError(f"{self.directory} cannot be made: {error.strerror}", _room(error)) from None

    def _measure(self) -> int:
        """Bytes of disk the run will take; also sets the total of the progress."""
        of_kind: dict[tuple[object, ...], tuple[int, int]] = {}
        for number in range(1, self.count + 1):
            kind = shard_kind(self.config, number)
            if kind not in of_kind:
                head, placed = place(shard(self.config, self.sizes, number))
                size = placed[-1].offset + placed[-1].tensor.nbytes
                if self.sparse:
                    real = real_pieces(self.config, self.seed, placed, dry=True)
                    size = len(head) + sum(len(data) for _, data in real)
                of_kind[kind] = size, sum(len(item.tensor.name) + 50 for item in placed)
            size, index = of_kind[kind]
            self._total += size
            self._needed += size + index
        return self._needed + SPARE

    def write_shard(self, number: int) -> None:
        """Write one shard under a temporary name, and rename it when it is on the disk."""
        head, placed = place(shard(self.config, self.sizes, number))
        path = self.directory / shard_name(number, self.count)
        part = path.with_suffix(".part")
        if self.sparse:
            self._write_sparse(part, head, placed)
        else:
            with DirectFile(part) as out:
                self._append(out, memoryview(head))
                for item in placed:
                    for piece in self._content(item.tensor):
                        self._append(out, piece)
                out.finish()
        os.replace(part, path)

    def _append(self, out: DirectFile, piece: memoryview) -> None:
        out.append(piece)
        self._count(len(piece))

    def _count(self, written: int) -> None:
        if self.stop.is_set():
            raise Interrupted("stopped")
        with self._lock:
            self._done += written
            if self._progress is not None:
                self._progress(self._done, self._total)

    def _write_sparse(self, part: Path, head: bytes, placed: Sequence[Placed]) -> None:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.ftruncate(handle, placed[-1].offset + placed[-1].tensor.nbytes)
            for offset, data in ((0, head), *real_pieces(self.config, self.seed, placed)):
                view = memoryview(data)
                while len(view):
                    written = os.pwrite(handle, view, offset)
                    view, offset = view[written:], offset + written
                self._count(len(data))
        finally:
            os.close(handle)

    def _content(self, tensor: Stored) -> Iterator[memoryview]:
        """The bytes of a tensor, in slices of the shared buffers if it is large."""
        count = math.prod(tensor.shape)
        if count <= SMALL:
            yield content(self.seed, tensor, self.config.kda.num_heads).data
            return
        buffer = self._buffer(tensor)
        start = key_of(self.seed, tensor.name) % (_BYTES if tensor.dtype == "U8" else _NUMBERS)
        at = start * (tensor.nbytes // count)
        left = tensor.nbytes
        while left:
            piece = buffer[at : at + left]
            yield piece
            left -= len(piece)
            at = 0

    def _buffer(self, tensor: Stored) -> memoryview:
        """The shared random numbers of one scale, or the shared codes."""
        kind: tuple[object, ...]
        if tensor.role.endswith("weight_packed"):
            kind = ("codes",)
        elif tensor.role.endswith("weight_scale"):
            kind = ("scales", exponent_of(tensor))
        else:
            kind = (tensor.dtype, *scale_of(tensor))
        with self._lock:
            if kind not in self._buffers:
                key = key_of(self.seed, repr(kind))
                if kind[0] == "codes":
                    made = codes(key, _BYTES)
                elif kind[0] == "scales":
                    made = scales(key, exponent_of(tensor), _BYTES)
                else:
                    made = numbers(key, scale_of(tensor), tensor.dtype, _NUMBERS)
                self._buffers[kind] = np.ascontiguousarray(made).data
            return self._buffers[kind]

    def finish(self) -> Written:
        """Index, then config.json, then no marker: from here on it is a checkpoint."""
        index = self.directory / INDEX_NAME
        with open(index.with_suffix(".part"), "wb") as out:
            for piece in index_pieces(self.config, self.sizes):
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())
        os.replace(index.with_suffix(".part"), index)
        config = self.directory / "config.json"
        config.with_suffix(".part").write_text(json.dumps(self.tree, indent=2) + "\n")
        os.replace(config.with_suffix(".part"), config)
        (self.directory / MARKER).unlink()
        if self._progress is not None:
            self._progress(self._total, self._total)
        stats = [(self.directory / name).stat() for name in self.names()]
        size, blocks = sum(s.st_size for s in stats), sum(s.st_blocks for s in stats)
        return Written(self.directory, self.count, size, 512 * blocks)

    def remove(self) -> None:
        """Remove what this run, or a killed one like it, has written."""
        for name in (path.name for path in self.directory.glob("*")):
            if name.endswith((".part", ".safetensors")) or name in (INDEX_NAME, "config.json"):
                (self.directory / name).unlink(missing_ok=True)
        (self.directory / MARKER).unlink(missing_ok=True)
        if self._made_directory:
            with contextlib.suppress(OSError):
                self.directory.rmdir()
