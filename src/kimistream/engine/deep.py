"""`verify --deep`: every byte of a checkpoint, once, as fast as the disk gives them or the cores hash them.

Knows: how to keep the disk and all cores busy: several files at a time, each hashed in order by a thread of
its own, read ahead past the page cache by the engine's reader. Does not know: what makes a number wrong
(checkpoint.scan), or what the digests should be until it compares them.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from kimistream.checkpoint.digest import MARK_BYTES, MarkedSha256, marks_of
from kimistream.checkpoint.manifest import MANIFEST_NAME, Manifest, ManifestFile
from kimistream.checkpoint.progress import Progress
from kimistream.checkpoint.scan import ShardScan
from kimistream.engine.deep_state import DeepState, ReadFile
from kimistream.engine.findings import Finding
from kimistream.engine.verify import Inspected
from kimistream.errors import Interrupted, KimistreamError
from kimistream.kernels.finite import glance
from kimistream.stream.arena import Arena
from kimistream.stream.files import Pread
from kimistream.stream.reader import Reader
from kimistream.stream.requests import KIND_TAPE, TAPE, Ticket

PIECE = 8 << 20
"""Bytes of one read: large, because a core that handles reads does not hash."""
STEP = 256 << 10
"""Bytes hashed at a time: they are still in the core's own cache for the scan behind it."""
AHEAD = 4
"""Pieces of one file that are read or waiting."""
READS = 8
"""Reads at once on one drive."""
MOST_WORKERS = 16
"""Files at a time; so many cores hash more than any disk gives."""


@dataclass(frozen=True, slots=True)
class Deep:
    """What a deep check did: the outcome of each file, and how many an earlier, interrupted one had read."""

    files: dict[str, ReadFile]
    earlier: int


class DeepCheck:
    """One pass over all files of an inspected directory. `run` once; `progress` may be looked at meanwhile."""

    def __init__(
        self,
        inspected: Inspected,
        *,
        workers: int | None = None,
        direct: bool = True,
        pread: Pread | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        """workers: files at a time, by default two more than the cores. pread: for tests (stream.files)."""
        self._pread = pread
        self._inspected = inspected
        self._direct = direct
        self._note = note or (lambda _: None)
        self._workers = max(1, workers if workers is not None else min(cores() + 2, MOST_WORKERS))
        self._stop = threading.Event()
        self._stopped = False
        self._lock = threading.Lock()
        self._queue: deque[tuple[int, str]] = deque()
        self._fatal: BaseException | None = None
        self._outcomes: dict[str, ReadFile] = {}
        self.progress = Progress()

    def run(self) -> Deep:
        """Read everything. Raises Interrupted; a disk error is an outcome of its file."""
        paths = self._inspected.paths
        sizes = self._inspected.sizes
        state = DeepState(self._inspected.directory)
        self._outcomes = state.load(paths)
        earlier = len(self._outcomes)
        if earlier:
            self._note(
                f"going on with an interrupted check: {earlier} of {len(paths)} files were read before"
            )
        self.progress.expect(len(paths), sum(sizes.values()))
        for name in self._outcomes:
            self.progress.already(sizes[name])
        # the largest first: at the end no single one is left to a single core
        todo = sorted((name for name in paths if name not in self._outcomes), key=lambda name: -sizes[name])
        self._queue.extend(enumerate(todo))
        workers = min(self._workers, len(todo))
        if workers:
            with (
                Reader(
                    [paths[name] for name in todo],
                    threads=READS,
                    request_bytes=PIECE,
                    direct=self._direct,
                    pread=self._pread,
                    notice=self._note,
                ) as reader,
                Arena(workers * AHEAD * PIECE) as arena,
            ):
                arena.touch()
                self._with_threads(reader, arena, workers, state)
        state.forget()
        if not state.writable:
            self._note(
                f"{self._inspected.directory} cannot be written: a stop would have begun from the start"
            )
        return Deep(self._outcomes, earlier)

    def stop(self) -> None:
        """End a `run` in another thread soon; it raises Interrupted, and the next one goes on."""
        self._stopped = True
        self._stop.set()

    def _with_threads(self, reader: Reader, arena: Arena, workers: int, state: DeepState) -> None:
        threads = []
        for i in range(workers):
            views = [arena.view((i * AHEAD + k) * PIECE, PIECE) for k in range(AHEAD)]
            thread = threading.Thread(
                target=self._work, args=(reader, views, state), name=f"verify {i}", daemon=True
            )
            threads.append(thread)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        finally:
            self._stop.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join(5.0)
            if len(self._outcomes) < len(self._inspected.paths):
                state.save()
        if self._fatal is not None:
            raise self._fatal
        if self._queue or self._stopped:
            raise Interrupted("stopped")

    def _work(self, reader: Reader, views: list[memoryview], state: DeepState) -> None:
        try:
            while not self._stop.is_set():
                with self._lock:
                    if not self._queue:
                        return
                    number, name = self._queue.popleft()
                outcome = self._read(reader, number, name, views)
                with self._lock:
                    self._outcomes[name] = outcome
                    state.add(name, outcome)
                self.progress.end(name, whole=True)
        except Interrupted:
            return
        except BaseException as error:
            with self._lock:
                self._fatal = self._fatal or error
            self._stop.set()

    def _read(self, reader: Reader, number: int, name: str, views: list[memoryview]) -> ReadFile:
        """One file from its first byte to its last: hash, marks, and the look at its numbers."""
        try:
            status = self._inspected.paths[name].stat()
        except OSError as error:  # it has gone since the look at the directory
            return ReadFile(0, 0, error=f"cannot be read: {error.strerror}")
        size = status.st_size
        header = self._inspected.header(name)
        scan = ShardScan(header, glance) if header is not None else None
        hashed = MarkedSha256(marks_of(header) if header is not None else ())
        self.progress.begin(name, size, 0, "reading")
        tickets: deque[Ticket] = deque()
        count = -(-size // PIECE)

        def ask(k: int) -> None:
            need = min(PIECE, size - k * PIECE)
            tickets.append(reader.submit([(number, k * PIECE, need, views[k % len(views)])], TAPE, KIND_TAPE))

        try:
            for k in range(min(len(views), count)):
                ask(k)
            for k in range(count):
                tickets.popleft().wait()
                if self._stop.is_set():
                    raise Interrupted("stopped")
                view = views[k % len(views)][: min(PIECE, size - k * PIECE)]
                for at in range(0, len(view), STEP):
                    part = view[at : at + STEP]
                    hashed.update(part)
                    if scan is not None:
                        scan.feed(k * PIECE + at, np.frombuffer(part, np.uint8))
                self.progress.advance(name, len(view))
                if k + len(views) < count:
                    ask(k + len(views))
        except Interrupted:
            raise
        except KimistreamError as error:
            return ReadFile(size, status.st_mtime_ns, error=error.what)
        finally:
            reader.cancel(tickets)
            for ticket in tickets:  # their memory is the next file's
                with suppress(KimistreamError):
                    ticket.wait()
        troubles = tuple(scan.troubles) if scan is not None else ()
        return ReadFile(size, status.st_mtime_ns, hashed.sha256, hashed.marks, troubles)


def judge(inspected: Inspected, deep: Deep) -> list[Finding]:
    """All findings of the shallow and the deep look together.

    A digest that is right shows that zeros and holes are as published; NaN is wrong in any case.
    """
    expected = inspected.manifest.files if inspected.manifest is not None else {}
    findings: list[Finding] = []
    for finding in inspected.findings:
        outcome, entry = deep.files.get(finding.file), expected.get(finding.file)
        right = outcome is not None and entry is not None and outcome.sha256 == entry.sha256
        findings.append(replace(finding, harmless=right and finding.zeros))
    told = {finding.file for finding in findings if not finding.harmless}
    for name, outcome in sorted(deep.files.items()):
        entry, repair = expected.get(name), inspected.repair(name)
        if outcome.error:
            findings.append(Finding(name, outcome.error, repair))
            continue
        right = entry is not None and outcome.sha256 == entry.sha256
        if entry is not None and not right and not (name in told and outcome.size != entry.size):
            findings.append(_wrong_bytes(inspected, name, outcome, entry))
        for trouble in outcome.troubles:
            zeros = not trouble.sure
            findings.append(
                Finding(name, trouble.what, repair, trouble.tensor, zeros=zeros, harmless=right and zeros)
            )
    return findings


def _wrong_bytes(inspected: Inspected, name: str, outcome: ReadFile, entry: ManifestFile) -> Finding:
    what = f"its bytes are not those of {MANIFEST_NAME}: sha256 is {outcome.sha256}, expected {entry.sha256}"
    tensor = None
    header = inspected.header(name)
    if header is not None and entry.marks and len(entry.marks) == len(outcome.marks):
        for k in range(0, len(entry.marks), MARK_BYTES):
            if entry.marks[k : k + MARK_BYTES] != outcome.marks[k : k + MARK_BYTES]:
                position = k // MARK_BYTES
                if position == 0:
                    what += "; the first wrong byte is in the header"
                else:
                    # in the order of the ends, as the marks are
                    ends = np.argsort(header.offsets + header.nbytes, kind="stable")
                    tensor = header.names[int(ends[position - 1])]
                    what += "; the first wrong byte is in this tensor"
                break
    return Finding(name, what, inspected.repair(name), tensor)


def local_manifest(inspected: Inspected, deep: Deep) -> Manifest:
    """A manifest of the files as they are, for `--write-manifest`."""
    files = {
        name: ManifestFile(outcome.size, outcome.sha256, outcome.marks)
        for name, outcome in deep.files.items()
    }
    old = inspected.manifest
    return Manifest("local", files, old.repo if old else None, old.revision if old else None)


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
