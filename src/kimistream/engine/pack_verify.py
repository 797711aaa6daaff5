"""Every byte of a pack held against the checkpoint it was made from.

Knows: how to read both, take the bands back to rows, and name the first tensor and row that differ.
Does not know: how a pack is made, or what a band holds inside.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kimistream.budget import format_size
from kimistream.checkpoint.pack import Pack
from kimistream.checkpoint.progress import Progress
from kimistream.checkpoint.table import Checkpoint
from kimistream.engine.model import prepare_kernels, resolve_budget
from kimistream.engine.sizes import runtime_bytes
from kimistream.errors import BudgetError, Interrupted, PackError
from kimistream.kernels.bands import check_bands, decode_bands
from kimistream.model.band_check import damaged
from kimistream.model.order import Matrix, Run, Score, tape_score
from kimistream.model.vectors import vector_names
from kimistream.stream.arena import Arena
from kimistream.stream.plan import reserve_for
from kimistream.stream.reader import Reader, span
from kimistream.stream.requests import KIND_TAPE, TAPE, Ticket

_DEPTHS = (3, 1)
"""Runs in memory at once, from much memory to little."""
_COMPARED = 1 << 20


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found right: bytes of the pack, and of the checkpoint."""

    tensors: int
    nbytes: int
    source_bytes: int
    seconds: float


class _Job(NamedTuple):
    """One run: its bytes in the pack, and those of its rows in the checkpoint (file, offset, bytes)."""

    matrix: Matrix
    run: Run
    packed: tuple[int, int, int]
    source: tuple[int, int, int]

    @property
    def bytes(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """What has to be read."""
        return self.packed, self.source


class PackVerify:
    """One look at a whole pack. `run` once; `progress` (bytes of the checkpoint) may be looked at meanwhile."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        pack: Pack,
        *,
        memory: int | str | None = None,
        threads: int | None = None,
        note: Callable[[str], None] | None = None,
        status: Callable[[str], None] | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.pack = pack
        self.progress = Progress()
        self._memory, self._threads = memory, threads
        self._note, self._status = note, status
        self._stop = threading.Event()

    def stop(self) -> None:
        """End a `run` in another thread soon; it raises Interrupted."""
        self._stop.set()

    def run(self) -> Verified:
        """Compare everything.

        Raises PackError naming the tensor for the first band or vector that is damaged or differs, ReadError,
        BudgetError, Interrupted.
        """
        started = time.perf_counter()
        prepare_kernels(self._threads, self._note, self._status, resolve_budget(self._memory)[0])
        score = tape_score(self.checkpoint, self.pack)
        jobs = self._jobs(score)
        names = vector_names(self.checkpoint.config)
        nbytes = sum(job.source[2] for job in jobs)
        self.progress.expect(1, nbytes)
        self.progress.begin(self.pack.path.name, nbytes, 0, "comparing")
        for name in names:
            self._vector(name)
        slot = [
            max(span(*each[1:])[1] for each in side)
            for side in zip(*(job.bytes for job in jobs), strict=True)
        ]
        decoded = max(job.source[2] for job in jobs)
        depth = self._depth(sum(slot), decoded)
        with ExitStack() as stack:
            arena = stack.enter_context(Arena(depth * sum(slot)))
            target = stack.enter_context(Arena(decoded))
            paths = [*(file.path for file in self.checkpoint.files), self.pack.path]
            reader = stack.enter_context(Reader(paths, notice=self._note))
            stack.callback(reader.drain, 0)
            self._compare(jobs, reader, arena, slot, depth, target)
        self.progress.end(self.pack.path.name, whole=True)
        tensors = len(names) + len(score.matrices())
        return Verified(tensors, self.pack.size, nbytes, time.perf_counter() - started)

    def _jobs(self, score: Score) -> list[_Job]:
        jobs = []
        for matrix in score.matrices():
            ref = self.checkpoint.dense(matrix.name)
            row = ref.nbytes // matrix.rows
            for run in matrix.runs:
                item = score.items[run.index]
                source = (ref.file, ref.offset + run.row0 * row, run.rows * row)
                jobs.append(_Job(matrix, run, (item.file, item.offset, item.nbytes), source))
        return jobs

    def _depth(self, slot: int, decoded: int) -> int:
        budget, _ = resolve_budget(self._memory)
        for depth in _DEPTHS:
            least = runtime_bytes() + depth * slot + decoded
            if least + reserve_for(least) <= budget:
                return depth
        least += reserve_for(least)
        raise BudgetError(
            f"the memory budget is {format_size(budget)}; comparing needs at least {format_size(least)}",
            f"Give at least `--memory {-(-least // 10**6)}MB`.",
            least_bytes=least,
        )

    def _vector(self, name: str) -> None:
        packed = self.pack.read_vector(name)
        if not np.array_equal(packed.view(np.uint32), self.checkpoint.read_vector(name).view(np.uint32)):
            raise self._differs(name, "")

    def _compare(
        self, jobs: list[_Job], reader: Reader, arena: Arena, slot: list[int], depth: int, target: Arena
    ) -> None:
        reads: deque[tuple[Ticket, list[int]]] = deque()

        def ask(number: int) -> None:
            base, extents, starts = number % depth * sum(slot), [], []
            for room, (file, offset, nbytes) in zip(slot, jobs[number].bytes, strict=True):
                start, aligned, lead = span(offset, nbytes)
                extents.append((file, start, lead + nbytes, arena.view(base, aligned)))
                starts.append(base + lead)
                base += room
            reads.append((reader.submit(extents, TAPE, KIND_TAPE), starts))

        for number in range(min(depth, len(jobs))):
            ask(number)
        for number, job in enumerate(jobs):
            if self._stop.is_set():
                raise Interrupted("stopped")
            ticket, (packed, source) = reads.popleft()
            ticket.wait()
            self._one(job, arena.address + packed, arena.array(source, job.source[2]), target)
            self.progress.advance(self.pack.path.name, job.source[2])
            if number + depth < len(jobs):
                ask(number + depth)

    def _one(self, job: _Job, packed: int, source: npt.NDArray[np.uint8], target: Arena) -> None:
        run, matrix = job.run, job.matrix
        assert run.form is not None
        place = self.pack.header.salt + run.first_band
        bad = check_bands(run.form, packed, run.form.bands(run.rows), place)
        if bad >= 0:
            raise damaged(self.pack.path, self.checkpoint.directory, matrix, run, job.packed[1], bad)
        decode_bands(run.form, packed, run.rows, target.address)
        got = target.array(0, len(source))
        for at in range(0, len(source), _COMPARED):
            if not np.array_equal(got[at : at + _COMPARED], source[at : at + _COMPARED]):
                first = at + int(np.argmax(got[at : at + _COMPARED] != source[at : at + _COMPARED]))
                raise self._differs(matrix.name, f" in row {run.row0 + first * run.rows // len(source)}")

    def _differs(self, name: str, where: str) -> PackError:
        ref = self.checkpoint.dense(name)
        return PackError(
            f"tensor {name} differs{where} between {self.pack.path} and {self.checkpoint.files[ref.file].path}",
            "The shard has changed since the pack was made: check it with `kimistream verify --deep`, then "
            "delete the pack and make it again.",
        )
