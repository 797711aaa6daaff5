"""Writing a large file in the background, past the page cache: aligned memory to aligned places.

Knows: `O_DIRECT` and the ways it is refused, short writes, a few threads, and when bytes are on the disk.
Does not know: what is written, or how much of it may be trusted after a kill.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from kimistream.errors import KimistreamError, OutputError
from kimistream.stream.defaults import ALIGNMENT

PIECE = 8 << 20
"""Bytes of one write."""
THREADS = 2
"""Writes at once: while one is under way the next is already queued at the drive."""
_REFUSED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

Pwrite = Callable[[int, memoryview, int], int]
"""Signature of `os.pwrite`; replaceable for tests."""


class Written:
    """The completion of one `submit`; waited for by one thread."""

    __slots__ = ("_gate", "done", "error", "left")

    def __init__(self, pieces: int) -> None:
        self.left = pieces
        self.done = pieces == 0
        self.error: OutputError | None = None
        # a plain lock, not an Event: its wait survives a KeyboardInterrupt at every point
        self._gate = threading.Lock()
        if pieces:
            self._gate.acquire()

    def wait(self) -> None:
        """Until the drive has taken the bytes. Raises the OutputError met."""
        if not self.done:
            self._gate.acquire()
            self._gate.release()
        if self.error is not None:
            raise self.error

    def one_less(self) -> None:  # with the writer's lock held
        self.left -= 1
        if self.left == 0:
            self.done = True
            self._gate.release()


class Writer:
    """A file that is written at aligned offsets from aligned memory; what it held before stays.

    direct: try `O_DIRECT`. Raises OutputError when it cannot be opened; a failed write is an OutputError of its
    `Written`, and of everything queued behind it.
    """

    def __init__(self, path: Path, *, direct: bool = True, pwrite: Pwrite = os.pwrite) -> None:
        self.path = path
        self._pwrite = pwrite
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        try:
            self._plain = os.open(path, flags, 0o644)
        except OSError as error:
            raise failed(path, error) from None
        self._direct = -1
        if direct and hasattr(os, "O_DIRECT"):
            with contextlib.suppress(OSError):
                self._direct = os.open(path, (flags & ~os.O_CREAT) | os.O_DIRECT)
        self._lock = threading.Lock()
        self._queue: SimpleQueue[tuple[int, memoryview, Written] | None] = SimpleQueue()
        self._error: OutputError | None = None
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"kimistream-write-{i}", daemon=True)
            for i in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, offset: int, view: memoryview) -> Written:
        """Queue a write; offset, address and length are multiples of the alignment. `view` stays in use."""
        if offset % ALIGNMENT or len(view) % ALIGNMENT:
            raise RuntimeError(f"a write of {len(view)} bytes at {offset} is not aligned")
        pieces = range(0, len(view), PIECE)
        written = Written(len(pieces))
        for at in pieces:
            self._queue.put((offset + at, view[at : at + PIECE], written))
        return written

    def sync(self) -> None:
        """Wait until what was written is on the disk. Raises OutputError."""
        try:
            getattr(os, "fdatasync", os.fsync)(self._plain)
        except OSError as error:
            raise failed(self.path, error) from None

    def finish(self, size: int) -> None:
        """Give the file its length, and wait until it is on the disk with all it holds. Raises OutputError."""
        try:
            os.ftruncate(self._plain, size)
            os.fsync(self._plain)
        except OSError as error:
            raise failed(self.path, error) from None

    def close(self) -> None:
        """Drop what has not been started, end the threads, close the file."""
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(10.0)
        if not any(thread.is_alive() for thread in self._threads):
            for handle in (self._plain, self._direct):
                if handle >= 0:
                    os.close(handle)
            self._plain = self._direct = -1

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while True:
            job = self._queue.get()
            if job is None or self._closed:
                return
            offset, view, written = job
            error = self._error
            if error is None:
                try:
                    self._write(offset, view)
                except KimistreamError as met:
                    error = met if isinstance(met, OutputError) else OutputError(met.what, met.remedy)
                except OSError as met:
                    error = failed(self.path, met)
                except BaseException as met:  # nothing may be lost in a thread
                    error = OutputError(
                        f"{self.path}: writing failed: {met!r}",
                        "This is a fault of the program: please report it.",
                    )
            with self._lock:
                self._error = self._error or error
                written.error = written.error or error
                written.one_less()
            del view, job

    def _write(self, offset: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            # a direct write may only go on from an aligned bound
            direct = self._direct >= 0 and done % ALIGNMENT == 0
            try:
                got = self._pwrite(self._direct if direct else self._plain, view[done:], offset + done)
            except InterruptedError:
                continue
            except OSError as error:
                if direct and error.errno in _REFUSED:
                    self._direct = -1  # some file systems take the flag and refuse the write
                    continue
                raise
            if got <= 0:
                raise OSError(errno.EIO, "nothing was written")
            done += got


def failed(path: Path, error: OSError) -> OutputError:
    """The error for a file that cannot be written."""
    name = errno.errorcode.get(error.errno or 0, "unknown error")
    what = f"{path} cannot be written: {error.strerror or error} ({name})"
    if error.errno in _FULL:
        return OutputError(what, "Free some space on its drive, or name a file on another drive.")
    return OutputError(what, "Check the permissions, and the system log (dmesg) for errors of this drive.")
