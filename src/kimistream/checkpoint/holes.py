"""Holes: parts of a file that the disk does not hold, and that read as zeros.

Knows: how to ask the file system (SEEK_HOLE).
Does not know: whether a hole does harm.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from kimistream.errors import ReadError


def holes(path: Path, most: int = 1000) -> list[tuple[int, int]]:
    """(offset, bytes) of each hole, at most `most` of them; none where the file system cannot tell."""
    if not hasattr(os, "SEEK_HOLE"):
        return []
    found: list[tuple[int, int]] = []
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            size = os.fstat(handle).st_size
            at = 0
            while at < size and len(found) < most:
                begin = os.lseek(handle, at, os.SEEK_HOLE)
                if begin >= size:
                    break
                end = _data_after(handle, begin, size)
                found.append((begin, end - begin))
                at = end
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOTSUP, errno.ENXIO):
            return found
        raise ReadError(f"{path} cannot be read: {error.strerror}", "Check its permissions.") from None
    return found


def _data_after(handle: int, begin: int, size: int) -> int:
    try:
        return os.lseek(handle, begin, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but the hole up to the end
            return size
        raise
