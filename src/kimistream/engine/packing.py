"""Making a pack: read ahead, packed on all cores, written behind, within a memory budget.

Knows: the pipeline, what is refused before it starts, and how a run that was killed goes on to the same bytes.
Does not know: the cut (pack_cut), the journal's form (pack_state), the bytes of a band (kernels.bands).

Everything goes to `OUT.partial`, whose first page stays empty until all else is on the disk; only then it gets
its header, and then its name. So nothing is ever taken for a whole pack that is not one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from kimistream.budget import format_size
from kimistream.checkpoint.pack import PARTIAL, Pack
from kimistream.checkpoint.pack_format import (
    HEADER_BYTES,
    PackHeader,
    encode_directory,
    encode_header,
)
from kimistream.checkpoint.progress import Progress
from kimistream.checkpoint.table import Checkpoint
from kimistream.checkpoint.whole import sync_directory
from kimistream.engine.model import prepare_kernels, resolve_budget
from kimistream.engine.pack_cut import Cut
from kimistream.engine.pack_pipeline import Pipeline
from kimistream.engine.pack_state import JOURNAL, Group, Journal
from kimistream.engine.sizes import runtime_bytes
from kimistream.errors import BudgetError, Interrupted, OutputError, PackError
from kimistream.stream.arena import Arena
from kimistream.stream.defaults import ALIGNMENT
from kimistream.stream.plan import reserve_for
from kimistream.stream.reader import Reader
from kimistream.stream.writer import Pwrite, Writer, failed

SPARE = 64 << 20
"""Bytes that stay free on the drive."""
_DEPTHS = ((4, 3), (3, 2), (2, 2), (1, 1))
"""Groups in memory, read and packed, from much memory to little."""

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Packed:
    """A pack that is whole. Bytes: of the dense weights in the checkpoint, of the file, and of the former those
    that were there already; `plain_bytes`: those that would not have become smaller."""

    path: Path
    source_bytes: int
    nbytes: int
    earlier_bytes: int
    plain_bytes: int
    seconds: float


class Packing:
    """One pack being made. `run` once; `progress` (bytes of the checkpoint) may be looked at meanwhile."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        out: str | Path,
        *,
        memory: int | str | None = None,
        threads: int | None = None,
        direct: bool = True,
        pwrite: Pwrite = os.pwrite,
        note: Note | None = None,
        status: Note | None = None,
    ) -> None:
        """memory: the budget of the whole process, as for `Model.open`. pwrite: for tests (stream.writer)."""
        self.checkpoint = checkpoint
        self.out = Path(out)
        self.partial = self.out.with_name(self.out.name + PARTIAL)
        self.progress = Progress()
        self.written_bytes = 0
        self._memory, self._threads = memory, threads
        self._direct, self._pwrite = direct, pwrite
        self._note = note or (lambda _: None)
        self._status = status
        self._stop = threading.Event()

    def stop(self) -> None:
        """End a `run` in another thread soon; it raises Interrupted, and the next one goes on."""
        self._stop.set()

    def run(self) -> Packed:
        """Make the pack, or go on making it.

        Raises OutputError when it cannot be written (also: no room, another one at work), BudgetError,
        ReadError, Interrupted. A pack that is there already is not made again.
        """
        started = time.perf_counter()
        if self.out.exists():
            return self._there(started)
        self._look_at_target()
        prepare_kernels(self._threads, self._note, self._status, resolve_budget(self._memory)[0])
        cut = Cut(self.checkpoint)
        depths, slot_in, slot_out = self._depths(cut)
        with ExitStack() as stack:
            stack.callback(os.close, self._locked())
            journal = Journal(self.out.with_name(self.out.name + JOURNAL))
            groups = self._earlier(journal, cut)
            self._look_for_room(cut, groups)
            # memory is given back last: reads and writes are under way until then
            arena_in = stack.enter_context(Arena(depths[0] * slot_in))
            arena_out = stack.enter_context(Arena(depths[1] * slot_out))
            writer = stack.enter_context(Writer(self.partial, direct=self._direct, pwrite=self._pwrite))
            reader = stack.enter_context(
                Reader([f.path for f in self.checkpoint.files], direct=self._direct, notice=self._note)
            )
            begun = sum(int(n) for n in cut.blocks.nbytes[: len(groups)])
            self.progress.expect(1, cut.nbytes)
            self.progress.begin(self.out.name, cut.nbytes, begun, "packing")
            pipeline = Pipeline(self, cut, groups, journal, reader, writer, arena_in, arena_out, depths)
            try:
                pipeline.run()
                self._finish(pipeline, writer)
            except BaseException as error:
                pipeline.settle_if_possible()
                if isinstance(error, OutputError):
                    raise self._resumable(error) from None
                raise
            journal.remove()
            self.progress.end(self.out.name, whole=True)
        plain = sum(
            stretch.rows * (stretch.ref.nbytes // stretch.ref.shape[0])
            for number in range(len(cut))
            for stretch, part in zip(cut.group(number), pipeline.groups[number].made, strict=True)
            if stretch.rows and part.form == stretch.ref.format.name
        )
        size = self.out.stat().st_size
        return Packed(self.out, cut.nbytes, size, begun, plain, time.perf_counter() - started)

    # ---------------------------------------------------------------- what is refused

    def _there(self, started: float) -> Packed:
        try:
            pack = Pack.open(self.out, self.checkpoint)
        except PackError as error:
            raise OutputError(
                f"{self.out} is there already, and is no pack of {self.checkpoint.directory}: {error.what}",
                "Delete it, or name another file.",
            ) from None
        nbytes = Cut(self.checkpoint).nbytes
        with contextlib.suppress(OSError):  # a run that was killed in its very last step
            self.partial.unlink()
        Journal(self.out.with_name(self.out.name + JOURNAL)).remove()
        return Packed(self.out, nbytes, pack.size, nbytes, 0, time.perf_counter() - started)

    def _look_at_target(self) -> None:
        if not self.out.parent.is_dir():
            raise OutputError(f"{self.out}: there is no directory {self.out.parent}", "Make it first.")

    def _locked(self) -> int:
        """The partial file, held against other processes."""
        try:
            handle = os.open(self.partial, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        except OSError as error:
            raise failed(self.partial, error) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise OutputError(
                f"{self.out} is being made by another process", "Wait until it ends, or stop it."
            ) from None
        return handle

    def _depths(self, cut: Cut) -> tuple[tuple[int, int], int, int]:
        """How many groups are in memory, and the memory of one, read and packed."""
        budget, _ = resolve_budget(self._memory)
        slot_in = cut.blocks.capacity
        slot_out = -(-(cut.out_bytes + 2 * ALIGNMENT) // ALIGNMENT) * ALIGNMENT
        held = runtime_bytes()
        for depths in _DEPTHS:
            needed = held + depths[0] * slot_in + depths[1] * slot_out
            if needed + reserve_for(needed) <= budget:
                return depths, slot_in, slot_out
        least = needed + reserve_for(needed)
        raise BudgetError(
            f"the memory budget is {format_size(budget)}; packing this checkpoint needs at least "
            f"{format_size(least)}",
            f"Give at least `--memory {-(-least // 10**6)}MB`.",
            least_bytes=least,
        )

    def _look_for_room(self, cut: Cut, groups: list[Group]) -> None:
        done = groups[-1].end if groups else 0
        needed = max(0, cut.expected_bytes() - done) + SPARE
        free = shutil.disk_usage(self.out.parent).free
        if needed > free:
            if not groups:
                self._forget()
            more = " more" if groups else ""
            raise OutputError(
                f"{self.out}: about {format_size(needed)}{more} are needed and {format_size(free)} are free on "
                f"its drive",
                "Free some space, or name a file on another drive.",
            )

    def _forget(self) -> None:
        for path in (self.partial, self.out.with_name(self.out.name + JOURNAL)):
            with contextlib.suppress(OSError):
                path.unlink()

    def _earlier(self, journal: Journal, cut: Cut) -> list[Group]:
        """The groups that an earlier run has left on the disk."""
        size = self.partial.stat().st_size
        groups = journal.load(self.checkpoint.identity, cut.digest.hex(), size)
        if groups:
            at = format_size(sum(int(n) for n in cut.blocks.nbytes[: len(groups)]))
            self._note(f"going on with a pack that was begun: {at} of {format_size(cut.nbytes)} are done")
        return groups

    def _resumable(self, error: OutputError) -> OutputError:
        remedy = f"{error.remedy} Then run the same command again: it goes on where it was"
        return OutputError(error.what, f"{remedy} (or delete {shlex.quote(str(self.partial))}).")

    # ---------------------------------------------------------------- the last steps

    def _finish(self, pipeline: Pipeline, writer: Writer) -> None:
        """The directory, then the header, then the name; each only when all before it is on the disk."""
        cut = pipeline.cut
        listed = encode_directory(cut.directory([list(group.made) for group in pipeline.groups]))
        end = pipeline.end
        size = end + len(listed)
        base = end // ALIGNMENT * ALIGNMENT
        data = pipeline.tail + listed
        with Arena(len(data)) as arena:
            view = arena.view(0, arena.nbytes)
            view[: len(data)] = data
            writer.submit(base, view).wait()
            writer.finish(size)
            identity = bytes.fromhex(self.checkpoint.identity)
            digest = hashlib.sha256(listed).digest()
            header = PackHeader(identity, cut.salt, size, end, len(listed), digest)
            view[:HEADER_BYTES] = encode_header(header)
            writer.submit(0, view[:HEADER_BYTES]).wait()
            writer.finish(size)
            view.release()
        try:
            os.replace(self.partial, self.out)
        except OSError as error:
            raise failed(self.out, error) from None
        sync_directory(self.out.parent)

    def packed(self, nbytes: int, end: int) -> None:
        """The pipeline has packed so many more bytes; the file will reach to `end`."""
        self.progress.advance(self.out.name, nbytes)
        self.written_bytes = end

    def check(self) -> None:
        """Raises Interrupted after `stop`."""
        if self._stop.is_set():
            raise Interrupted("stopped")
