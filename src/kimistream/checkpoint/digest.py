"""Digests of whole files as they are on the disk: sha256, git's blob id, and sha256 at marks on the way.

Knows: how to hash a file that was just written from the disk instead of from the page cache.
Does not know: which digest a file should have.

A mark is an offset, in a shard the end of a tensor; its digest is that of the bytes before it, shortened to
`MARK_BYTES`. They cost nothing beside the whole file's digest, and when a file turns out wrong later the
first mark that differs names the tensor with the first wrong byte.

`verify --deep` has its own, faster way to read (engine.deep): many files at once past the page cache.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kimistream.checkpoint.header import Header
from kimistream.errors import Interrupted, ReadError

MARK_BYTES = 8
_PIECE = 4 << 20


class Digests(NamedTuple):
    """`blob` is git's id of the content: sha1 over "blob SIZE\\0" and the bytes."""

    size: int
    sha256: str
    blob: str
    marks: bytes


class MarkedSha256:
    """sha256 over bytes in order, with a look at it at each mark (ascending offsets)."""

    def __init__(self, marks: Sequence[int] = ()) -> None:
        self._hash = hashlib.sha256()
        self._marks = marks
        self._next = 0
        self._done = 0
        self._seen = bytearray()

    def update(self, data: memoryview) -> None:
        while self._next < len(self._marks) and self._marks[self._next] <= self._done + len(data):
            count = self._marks[self._next] - self._done
            self._hash.update(data[:count])
            self._done += count
            data = data[count:]
            self._seen += self._hash.copy().digest()[:MARK_BYTES]
            self._next += 1
        self._hash.update(data)
        self._done += len(data)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    @property
    def marks(self) -> bytes:
        return bytes(self._seen)


def marks_of(header: Header) -> list[int]:
    """The marks of a shard: the end of its header, then the end of each tensor in the order of the file."""
    ends = np.sort(header.offsets + header.nbytes)
    return [header.data_start, *ends.tolist()]


def digest_file(
    path: Path,
    *,
    blob: bool = False,
    marks: Sequence[int] = (),
    stop: threading.Event | None = None,
    progress: Callable[[int], None] | None = None,
) -> Digests:
    """Hash a file; `blob` too on request (else ""). Raises ReadError, or Interrupted once `stop` is set.

    What was written is flushed first and then read back from the disk where the system lets go of its
    cached pages (Linux). `progress` is called with the bytes of each piece.
    """
    sha256 = MarkedSha256(marks)
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            os.fsync(handle)
            size = os.fstat(handle).st_size
            _drop(handle)
            sha1 = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
            buffer = memoryview(bytearray(_PIECE))
            done = 0
            while (got := os.readv(handle, [buffer])) > 0:
                if stop is not None and stop.is_set():
                    raise Interrupted("stopped")
                sha256.update(buffer[:got])
                if blob:
                    sha1.update(buffer[:got])
                done += got
                if progress is not None:
                    progress(got)
            _drop(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise ReadError(
            f"{path}: reading failed: {error.strerror}",
            "Look at the system log (dmesg) for errors of this drive.",
        ) from None
    return Digests(done, sha256.sha256, sha1.hexdigest() if blob else "", sha256.marks)


def _drop(handle: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
