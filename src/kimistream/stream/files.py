"""One file, read directly into aligned memory where the system allows it, else through the page cache.

Knows: `O_DIRECT` and its alignment, the ways it is refused, short reads, interrupted reads, the end of the
file, and how to say which file and offset an error belongs to.
Does not know: who reads, in which order, or how many at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable

from kimistream.errors import ReadError, ShardError

_REFUSED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP})

Pread = Callable[[int, list[memoryview], int], int]
OpenFile = Callable[[str, int], int]


def _preadv_by_copy(fd: int, buffers: list[memoryview], offset: int) -> int:
    data = os.pread(fd, len(buffers[0]), offset)
    buffers[0][: len(data)] = data
    return len(data)


system_pread: Pread = os.preadv if hasattr(os, "preadv") else _preadv_by_copy


class DirectFile:
    """An open file. `direct` turns False, and `refused` is called with one line, when direct reads fail.

    pread and open_file are replaceable for tests (signatures of `os.preadv` and `os.open`).
    Raises ShardError when the file cannot be opened.
    """

    __slots__ = (
        "_buffered_fd",
        "_fd",
        "_lock",
        "_open",
        "_pread",
        "_refused",
        "alignment",
        "device",
        "direct",
        "path",
    )

    def __init__(
        self,
        path: str,
        *,
        direct: bool,
        alignment: int,
        pread: Pread,
        open_file: OpenFile,
        refused: Callable[[str], None],
    ) -> None:
        self.path = path
        self.alignment = alignment
        self._pread = pread
        self._open = open_file
        self._refused = refused
        self._lock = threading.Lock()
        self._fd = self._buffered_fd = -1
        self.direct = direct and hasattr(os, "O_DIRECT")
        try:
            if self.direct:
                try:
                    self._fd = open_file(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
                except OSError as error:
                    if error.errno not in _REFUSED:
                        raise
                    self.direct = False
                    refused(path)
            if self._fd < 0:
                self._fd = self._buffered_fd = open_file(path, os.O_RDONLY | os.O_CLOEXEC)
                if direct and not hasattr(os, "O_DIRECT"):
                    _no_cache(self._fd)
            self.device = _drive_of(self._fd)
        except OSError as error:
            self.close()
            raise ShardError(
                f"{path} cannot be opened: {_describe(error)}",
                "Check that it is there and readable, and that `ulimit -n` allows one descriptor per file.",
            ) from error

    def read(self, offset: int, view: memoryview, need: int) -> int:
        """Fill at least the first `need` bytes of the aligned `view` from the aligned `offset`.

        Returns the bytes read, widening included. Raises ReadError with the file, the offset and the cause.
        """
        try:
            if self.direct:
                return self._fill(self._fd, offset, view, need)
            return self.read_buffered(offset, view, need)
        except OSError as error:
            raise self._error(offset, need, error) from error

    def read_buffered(self, offset: int, view: memoryview, need: int) -> int:
        """The same at any offset into any memory, through the page cache, which is told to forget it."""
        try:
            fd = self._buffered()
            done = self._fill(fd, offset, view, need)
        except OSError as error:
            raise self._error(offset, need, error) from error
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # advice only
                os.posix_fadvise(fd, offset, len(view), os.POSIX_FADV_DONTNEED)
        return done

    def close(self) -> None:
        with self._lock:
            for fd in {self._fd, self._buffered_fd} - {-1}:
                os.close(fd)
            self._fd = self._buffered_fd = -1

    def _fill(self, fd: int, offset: int, view: memoryview, need: int) -> int:
        done = 0
        while done < need:
            try:
                got = self._pread(fd, [view[done:] if done else view], offset + done)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno in _REFUSED and fd != self._buffered_fd:
                    fd = self._fall_back()
                    continue
                raise
            if got <= 0:
                raise ReadError(
                    f"{self.path} ends at byte {offset + done:,}; its header promises {need - done:,} more",
                    "The file was cut after it was opened: fetch it again, then run `kimistream verify`.",
                )
            done += got
            if done < need and done % self.alignment and fd != self._buffered_fd:
                # A direct read may only go on from an aligned bound; where that gains nothing, the rest is
                # read through the page cache.
                aligned = done - done % self.alignment
                if aligned > done - got:
                    done = aligned
                else:
                    fd = self._buffered()
        return done

    def _buffered(self) -> int:
        """A descriptor of the same file without direct reading."""
        with self._lock:
            if self._buffered_fd < 0:
                self._buffered_fd = self._open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            return self._buffered_fd

    def _fall_back(self) -> int:
        fd = self._buffered()
        with self._lock:
            first, self.direct = self.direct, False  # the old descriptor stays: others may be reading from it
        if first:
            self._refused(self.path)
        return fd

    def _error(self, offset: int, nbytes: int, error: OSError) -> ReadError:
        return ReadError(
            f"{self.path}: reading {nbytes:,} bytes at offset {offset:,} failed: {_describe(error)}",
            "Look at the system log (dmesg) for errors of this drive; fetch or copy the file again, then "
            "check it with `kimistream verify --deep`.",
        )


def _drive_of(fd: int) -> int:
    return os.fstat(fd).st_dev


def _describe(error: OSError) -> str:
    return f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, 'unknown error')})"


def _no_cache(fd: int) -> None:
    """macOS: read past the unified buffer cache (48 is F_NOCACHE)."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.fcntl(fd, getattr(fcntl, "F_NOCACHE", 48), 1)
