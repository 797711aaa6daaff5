"""The reader: threads that bring runs of file bytes into aligned memory, the urgent ones first.

Knows: files and the drives they are on, direct reads and their fallback, priorities, the queue depth,
what it counted, and how to turn an operating system's error into one that names the file.
Does not know: what the bytes mean, who waits for them, or how memory is handed out.

One queue per drive (`st_dev`), each with its own threads. A queue holds *extents*; a thread cuts the next
piece of `request_bytes` off the first extent of the highest priority. So what is in flight is bounded by
threads x request_bytes, and a new expert read starts after one piece, not after everything queued.
A `Ticket` stands for the extents given in one `submit`.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from kimistream.errors import ReadError, ShardError
from kimistream.stream.counters import ReadCounters
from kimistream.stream.defaults import ALIGNMENT, MAX_REQUEST_BYTES, REQUEST_BYTES, THREADS_PER_DRIVE

# Priorities, and what a read is counted as.
EXPERT, TAPE, SPECULATIVE = 0, 1, 2
KIND_TAPE, KIND_EXPERT, KIND_SPECULATIVE, KIND_OTHER = 0, 1, 2, 3

# Who asks; and why a source has nothing queued (see `Reader.wants`).
TAPE_SOURCE, EXPERT_SOURCE, OTHER_SOURCE = 0, 1, 2
NOTHING, FULL, HUNGRY = 0, 1, 2
_SOURCE_OF_KIND = (TAPE_SOURCE, EXPERT_SOURCE, EXPERT_SOURCE, OTHER_SOURCE)

_DIRECT_REFUSED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP})

Pread = Callable[[int, list[memoryview], int], int]


class Ticket:
    """The completion of one `submit`. Waited for by one thread at a time."""

    __slots__ = ("_lock", "_waiter", "arrived", "cancelled", "done", "error", "kind", "remaining", "tag")

    def __init__(
        self, lock: threading.Lock, kind: int, arrived: Callable[[Ticket], None] | None, tag: Any
    ) -> None:
        self._lock = lock
        self._waiter: threading.Lock | None = None
        self.arrived = arrived
        self.kind = kind
        self.tag = tag
        self.remaining = 0
        self.done = False
        self.cancelled = False
        self.error: ReadError | None = None

    def wait(self) -> float:
        """Block until every byte is there; returns the seconds waited. Raises the `ReadError` met, if any."""
        waited = 0.0
        if not self.done:
            started = time.perf_counter()
            waiter = threading.Lock()
            waiter.acquire()
            with self._lock:
                if not self.done:
                    self._waiter = waiter
                else:
                    waiter.release()
            waiter.acquire()
            waited = time.perf_counter() - started
        if self.error is not None:
            raise self.error
        return waited

    def _finish(self) -> None:  # with the lock held
        self.done = True
        if self._waiter is not None:
            self._waiter.release()
            self._waiter = None
        if self.arrived is not None:
            self.arrived(self)


class _File:
    __slots__ = ("buffered_fd", "direct", "drive", "fd", "path")

    def __init__(self, path: str, fd: int, direct: bool, drive: _Drive) -> None:
        self.path = path
        self.fd = fd
        self.direct = direct
        self.buffered_fd = -1 if direct else fd
        self.drive = drive


class _Extent:
    __slots__ = ("cursor", "dest", "file", "need", "piece", "start", "ticket")

    def __init__(self, file: _File, start: int, dest: memoryview, need: int, piece: int, ticket: Ticket):
        self.file = file
        self.start = start
        self.dest = dest
        self.need = need  # bytes of dest that must come; the rest is widening and may lie beyond the file
        self.piece = piece
        self.cursor = 0
        self.ticket = ticket

    def pieces_left(self) -> int:
        return -(-(len(self.dest) - self.cursor) // self.piece)


class _Drive:
    __slots__ = ("idle", "queues", "ready", "speculative_in_flight", "threads")

    def __init__(self, lock: threading.Lock) -> None:
        self.ready = threading.Condition(lock)
        self.queues: tuple[deque[_Extent], ...] = (deque(), deque(), deque())
        self.threads: list[threading.Thread] = []
        self.idle = 0
        self.speculative_in_flight = 0


class Reader:
    """Reads from `paths` (index = file number in every call).

    threads: queue depth per drive. request_bytes: size of one read of the operating system.
    direct: try `O_DIRECT` (macOS: `F_NOCACHE`). pread: replaceable for tests (signature of `os.preadv`).
    notice: called with one line when direct reading was refused; also appended to `notices`.
    Raises ShardError when a file cannot be opened.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        threads: int = THREADS_PER_DRIVE,
        request_bytes: int = REQUEST_BYTES,
        alignment: int = ALIGNMENT,
        direct: bool = True,
        pread: Pread | None = None,
        open_file: Callable[[str, int], int] = os.open,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        if alignment < 1 or alignment & (alignment - 1):
            raise RuntimeError(f"alignment {alignment} is not a power of two")
        self.alignment = alignment
        self.request_bytes = max(alignment, min(request_bytes, MAX_REQUEST_BYTES) // alignment * alignment)
        self.threads = max(1, threads)
        self.notices: list[str] = []
        self._pread: Pread = pread if pread is not None else _system_pread
        self._open = open_file
        self._notice = notice
        self._lock = threading.Lock()
        self._closed = False
        self._drives: dict[int, _Drive] = {}
        self._files: list[_File] = []
        # counters; all under the lock
        self._bytes = [0, 0, 0, 0]
        self._requests = 0
        self._in_flight = 0
        self._in_flight_of = [0, 0, 0]  # by source
        self._quiet = threading.Condition(self._lock)  # signalled when a source has nothing in flight
        self._busy = 0.0
        self._depth = 0.0
        self._empty = [0.0, 0.0, 0.0]  # ring full, slots full, starved
        self._wants = [NOTHING, NOTHING]
        self._clock = time.perf_counter()
        try:
            for path in paths:
                self._add_file(str(path), direct)
        except BaseException:
            self._close_files()
            raise
        self._speculative_limit = max(1, self.threads // 2)
        for number, drive in enumerate(self._drives.values()):
            for i in range(self.threads):
                thread = threading.Thread(
                    target=self._work, args=(drive,), name=f"kimistream-read-{number}.{i}", daemon=True
                )
                drive.threads.append(thread)
                thread.start()

    # ---------------------------------------------------------------- what callers use

    @property
    def drives(self) -> int:
        return len(self._drives)

    @property
    def direct(self) -> bool:
        """All files are read past the page cache."""
        return all(file.direct for file in self._files)

    def span(self, offset: int, nbytes: int) -> tuple[int, int, int]:
        """(aligned start, aligned byte count, lead): the bytes wanted begin `lead` bytes into the span."""
        return span(offset, nbytes, self.alignment)

    def submit(
        self,
        extents: Iterable[tuple[int, int, int, memoryview]],
        priority: int,
        kind: int,
        arrived: Callable[[Ticket], None] | None = None,
        tag: Any = None,
    ) -> Ticket:
        """Queue reads (file, aligned start, bytes needed from there, aligned destination).

        The destination covers the whole aligned span; only the needed bytes must exist in the file.
        `arrived` is called once, by a reader thread holding the reader's lock: it must be brief and must not
        call the reader.
        """
        ticket = Ticket(self._lock, kind, arrived, tag)
        jobs: list[_Extent] = []
        if self._closed:
            ticket.error, ticket.done = _closed_error(), True
            return ticket
        for file, start, need, dest in extents:
            nbytes = len(dest)
            if start % self.alignment or need > nbytes or start < 0:
                raise RuntimeError(f"read of {need} bytes at {start} into {nbytes} is not an aligned span")
            if need <= 0:
                continue
            count = -(-nbytes // self.request_bytes)
            piece = -(-(-(-nbytes // count)) // self.alignment) * self.alignment
            job = _Extent(self._files[file], start, dest, need, piece, ticket)
            ticket.remaining += job.pieces_left()
            jobs.append(job)
        with self._lock:
            if self._closed:
                ticket.error = _closed_error()
                ticket._finish()
                return ticket
            if not jobs:
                ticket._finish()
                return ticket
            for job in jobs:
                drive = job.file.drive
                drive.queues[priority].append(job)
                if drive.idle:
                    drive.ready.notify(min(drive.idle, job.pieces_left()))
        return ticket

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Drop what has not been started. A ticket is done when its reads in flight have ended."""
        chosen = {id(ticket): ticket for ticket in tickets if not ticket.done}
        if not chosen:
            return
        with self._lock:
            for drive in self._drives.values():
                for queue in drive.queues:
                    if not any(id(job.ticket) in chosen for job in queue):
                        continue
                    kept = []
                    for job in queue:
                        if id(job.ticket) in chosen:
                            job.ticket.remaining -= job.pieces_left()
                        else:
                            kept.append(job)
                    queue.clear()
                    queue.extend(kept)
            for ticket in chosen.values():
                if not ticket.done:
                    ticket.cancelled = True
                    if ticket.remaining == 0:
                        ticket._finish()

    def drain(self, source: int, timeout: float = 5.0) -> bool:
        """Drop everything a source has queued and wait for its reads in flight, so that its memory is its own.

        Needs no list of tickets: it also ends reads whose ticket was lost to a KeyboardInterrupt.
        Returns False when reads are still in flight after `timeout` seconds.
        """
        with self._lock:
            for drive in self._drives.values():
                for queue in drive.queues:
                    kept = [job for job in queue if _SOURCE_OF_KIND[job.ticket.kind] != source]
                    for job in queue:
                        if _SOURCE_OF_KIND[job.ticket.kind] == source:
                            ticket = job.ticket
                            ticket.cancelled = True
                            ticket.remaining -= job.pieces_left()
                            if ticket.remaining == 0:
                                ticket._finish()
                    queue.clear()
                    queue.extend(kept)
            return self._quiet.wait_for(lambda: self._in_flight_of[source] == 0, timeout)

    def promote(
        self, ticket: Ticket, priority: int, kind: int, arrived: Callable[[Ticket], None], tag: Any
    ) -> bool:
        """Turn a guess into a certain read: what is still queued of it moves to another priority.

        Returns True when it is already done (then `arrived` is not called).
        """
        with self._lock:
            if ticket.done:
                return True
            ticket.arrived, ticket.tag = arrived, tag
            for drive in self._drives.values():
                queue = drive.queues[SPECULATIVE]
                moved = [job for job in queue if job.ticket is ticket]
                for job in moved:
                    queue.remove(job)
                drive.queues[priority].extend(moved)
                if moved and drive.idle:
                    drive.ready.notify(drive.idle)
            ticket.kind = kind
            return False

    def wants(self, source: int, state: int) -> None:
        """A source (tape or experts) says why it has queued no more: NOTHING wanted, memory FULL, or HUNGRY."""
        if self._wants[source] != state:
            with self._lock:
                self._advance()
                self._wants[source] = state

    def counters(self) -> ReadCounters:
        with self._lock:
            self._advance()
            tape, expert, speculative, other = self._bytes
            return ReadCounters(
                tape, expert, speculative, other, self._requests, self._busy, self._depth, *self._empty
            )

    def read_now(self, file: int, offset: int, nbytes: int) -> bytes:
        """Read some bytes at once in the calling thread (small things: embedding rows, vectors)."""
        source = self._files[file]
        buffer = bytearray(nbytes)
        if nbytes:
            self._fill(source, self._buffered(source), offset, memoryview(buffer), nbytes)
            self._forget(source.buffered_fd, offset, nbytes)
        with self._lock:
            self._bytes[KIND_OTHER] += nbytes
            self._requests += 1
        return bytes(buffer)

    def close(self, timeout: float = 1.0) -> None:
        """Stop: queued reads fail, reads in flight end, threads and descriptors go."""
        with self._lock:
            first = not self._closed
            self._closed = True
            if first:
                self._fail_queued()
            for drive in self._drives.values():
                drive.ready.notify_all()
        deadline = time.monotonic() + timeout
        alive = False
        for drive in self._drives.values():
            for thread in drive.threads:
                thread.join(max(0.0, deadline - time.monotonic()))
                alive = alive or thread.is_alive()
        if not alive:  # else a read hangs in the kernel: its descriptor must outlive it
            self._close_files()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------- files

    def _add_file(self, path: str, direct: bool) -> None:
        fd, is_direct = -1, False
        try:
            if direct and hasattr(os, "O_DIRECT"):
                try:
                    fd, is_direct = self._open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT), True
                except OSError as error:
                    if error.errno not in _DIRECT_REFUSED:
                        raise
                    self._say_fallback(path)
            if fd < 0:
                fd = self._open(path, os.O_RDONLY | os.O_CLOEXEC)
                if direct and not hasattr(os, "O_DIRECT"):
                    _no_cache(fd)
            number = os.fstat(fd).st_dev
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise ShardError(
                f"{path} cannot be opened: {error.strerror} (errno {error.errno})",
                "check that the file is there and readable, and that `ulimit -n` allows one descriptor per file",
            ) from error
        drive = self._drives.get(number)
        if drive is None:
            drive = self._drives[number] = _Drive(self._lock)
        self._files.append(_File(path, fd, is_direct, drive))

    def _say_fallback(self, path: str) -> None:
        if not self.notices:
            line = f"direct reading is refused for {path}: reading through the page cache (same results, maybe slower)"
            self.notices.append(line)
            if self._notice is not None:
                self._notice(line)

    def _buffered(self, file: _File) -> int:
        """A descriptor of the same file without O_DIRECT."""
        if file.buffered_fd < 0:
            fd = self._open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            with self._lock:
                if file.buffered_fd < 0:
                    file.buffered_fd, fd = fd, -1
            if fd >= 0:
                os.close(fd)
        return file.buffered_fd

    def _fall_back(self, file: _File) -> None:
        self._buffered(file)
        with self._lock:
            file.direct = False  # fd stays open: other threads may be reading from it
            self._say_fallback(file.path)

    def _close_files(self) -> None:
        with self._lock:
            for file in self._files:
                for fd in {file.fd, file.buffered_fd}:
                    if fd >= 0:
                        os.close(fd)
            self._files.clear()

    # ---------------------------------------------------------------- threads

    def _work(self, drive: _Drive) -> None:
        lock = self._lock
        while True:
            with lock:
                while True:
                    if self._closed:
                        return
                    job = self._next(drive)
                    if job is not None:
                        break
                    drive.idle += 1
                    drive.ready.wait()
                    drive.idle -= 1
                begin = job.cursor
                end = min(begin + job.piece, len(job.dest))
                speculative = job.ticket.kind == KIND_SPECULATIVE
                self._start(drive, job, end, speculative)
            while True:
                got, failure = self._read_piece(job, begin, end)
                with lock:
                    self._complete(drive, job, got, failure, speculative)
                    following = None if self._closed else self._next(drive)
                    if following is None:
                        break
                    job = following
                    begin = job.cursor
                    end = min(begin + job.piece, len(job.dest))
                    speculative = job.ticket.kind == KIND_SPECULATIVE
                    self._start(drive, job, end, speculative)
            job = following = None  # keep no view of anybody's memory while idle

    def _next(self, drive: _Drive) -> _Extent | None:
        experts, tape, speculative = drive.queues
        if experts:
            return experts[0]
        if tape:
            return tape[0]
        if speculative and drive.speculative_in_flight < self._speculative_limit:
            return speculative[0]
        return None

    def _start(self, drive: _Drive, job: _Extent, end: int, speculative: bool) -> None:
        job.cursor = end
        if end >= len(job.dest):
            for queue in drive.queues:
                if queue and queue[0] is job:
                    queue.popleft()
                    break
        self._advance()
        self._in_flight += 1
        self._in_flight_of[_SOURCE_OF_KIND[job.ticket.kind]] += 1
        if speculative:
            drive.speculative_in_flight += 1

    def _complete(
        self, drive: _Drive, job: _Extent, got: int, failure: ReadError | None, speculative: bool
    ) -> None:
        self._advance()
        ticket = job.ticket
        source = _SOURCE_OF_KIND[ticket.kind]
        self._in_flight -= 1
        self._in_flight_of[source] -= 1
        if speculative:
            drive.speculative_in_flight -= 1
        if self._in_flight_of[source] == 0:
            self._quiet.notify_all()
        self._bytes[ticket.kind] += got
        self._requests += 1
        if failure is not None and ticket.error is None:
            ticket.error = failure
        ticket.remaining -= 1
        if ticket.remaining == 0:
            ticket._finish()

    def _advance(self) -> None:
        """Book the time since the last event (lock held)."""
        now = time.perf_counter()
        passed, self._clock = now - self._clock, now
        if self._in_flight:
            self._busy += passed
            self._depth += passed * self._in_flight
        else:
            tape, experts = self._wants
            if tape == FULL:
                self._empty[0] += passed
            elif experts == FULL:
                self._empty[1] += passed
            elif tape == HUNGRY or experts == HUNGRY:
                self._empty[2] += passed

    def _fail_queued(self) -> None:
        for drive in self._drives.values():
            for queue in drive.queues:
                for job in queue:
                    ticket = job.ticket
                    ticket.remaining -= job.pieces_left()
                    if ticket.error is None:
                        ticket.error = _closed_error()
                    if ticket.remaining == 0:
                        ticket._finish()
                queue.clear()

    # ---------------------------------------------------------------- one piece

    def _read_piece(self, job: _Extent, begin: int, end: int) -> tuple[int, ReadError | None]:
        file, offset = job.file, job.start + begin
        need = min(end, job.need) - begin
        if need <= 0:  # a piece of pure widening
            return 0, None
        try:
            got = self._fill(
                file, file.fd if file.direct else file.buffered_fd, offset, job.dest[begin:end], need
            )
            if not file.direct:
                self._forget(file.buffered_fd, offset, end - begin)
            return got, None
        except ReadError as error:
            return 0, error
        except OSError as error:
            return 0, _read_error(file.path, offset, need, error)
        except BaseException as error:  # nothing may be lost in a thread
            return 0, ReadError(f"{file.path}: reading {need:,} bytes at {offset:,} failed: {error!r}")

    def _fill(self, file: _File, fd: int, offset: int, view: memoryview, need: int) -> int:
        done = 0
        while done < need:
            try:
                got = self._pread(fd, [view[done:] if done else view], offset + done)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno in _DIRECT_REFUSED and fd == file.fd and fd != file.buffered_fd:
                    self._fall_back(file)
                    fd = file.buffered_fd
                    continue
                raise
            if got <= 0:
                raise ReadError(
                    f"{file.path} ends at {offset + done:,} bytes; {need - done:,} more were promised by its header",
                    "the file was cut since it was opened: fetch it again, then run `kimistream verify`",
                )
            done += got
            if done < need and done % self.alignment and fd != file.buffered_fd:
                # A direct read may only continue on an aligned bound; where that gains nothing, read the rest
                # through the page cache.
                aligned = done - done % self.alignment
                if aligned > done - got:
                    done = aligned
                else:
                    fd = self._buffered(file)
        return done

    @staticmethod
    def _forget(fd: int, offset: int, nbytes: int) -> None:
        if hasattr(os, "posix_fadvise"):
            try:
                os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_DONTNEED)
            except OSError:
                pass  # advice only


def span(offset: int, nbytes: int, alignment: int = ALIGNMENT) -> tuple[int, int, int]:
    """(aligned start, aligned byte count, lead) of the smallest aligned span over `offset : offset + nbytes`."""
    start = offset // alignment * alignment
    end = -(-(offset + nbytes) // alignment) * alignment
    return start, end - start, offset - start


def _closed_error() -> ReadError:
    return ReadError("the reader was closed while reads were queued")


def _read_error(path: str, offset: int, nbytes: int, error: OSError) -> ReadError:
    name = errno.errorcode.get(error.errno or 0, "?")
    return ReadError(
        f"{path}: reading {nbytes:,} bytes at offset {offset:,} failed: {error.strerror or error} ({name})",
        "look at the system log (dmesg) for errors of this drive; copy or fetch the file again, "
        "then check it with `kimistream verify --deep`",
    )


def _no_cache(fd: int) -> None:
    try:
        import fcntl

        fcntl.fcntl(fd, getattr(fcntl, "F_NOCACHE", 48), 1)
    except (ImportError, OSError):
        pass


def _preadv_by_copy(fd: int, buffers: list[memoryview], offset: int) -> int:
    data = os.pread(fd, len(buffers[0]), offset)
    buffers[0][: len(data)] = data
    return len(data)


_system_pread: Pread = os.preadv if hasattr(os, "preadv") else _preadv_by_copy
