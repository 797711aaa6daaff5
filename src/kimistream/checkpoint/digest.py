"""Digests of whole files as they are on the disk: sha256, and git's blob id.

Knows: how to hash a file that was just written from the disk instead of from the page cache.
Does not know: which digest a file should have.

`verify --deep` has its own, faster way (engine.deep): it reads many files at once past the page cache.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kimistream.errors import Interrupted, ReadError

_PIECE = 4 << 20


class Digests(NamedTuple):
    """`blob` is git's id of the content: sha1 over "blob SIZE\\0" and the bytes."""

    size: int
    sha256: str
    blob: str


def digest_file(
    path: Path,
    *,
    blob: bool = False,
    stop: threading.Event | None = None,
    progress: Callable[[int], None] | None = None,
) -> Digests:
    """Hash a file; `blob` too on request (else ""). Raises ReadError, or Interrupted once `stop` is set.

    What was written is flushed first and then read back from the disk where the system lets go of its
    cached pages (Linux). `progress` is called with the bytes of each piece.
    """
    sha256 = hashlib.sha256()
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
    return Digests(done, sha256.hexdigest(), sha1.hexdigest() if blob else "")


def _drop(handle: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
