"""Small files that appear whole or not at all, and the project's own folder in a checkpoint directory.

Knows: write beside, flush to the disk, rename; the folder's name.
Does not know: what is written.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from kimistream.errors import OutputError

FOLDER = ".kimistream"
"""In a checkpoint directory: what pull and verify must remember. It may be deleted at any time."""


def write_whole(path: Path, data: bytes) -> None:
    """Replace the file at `path` by `data` in one step that survives a power cut. Raises OutputError."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise OutputError(
            f"{path} cannot be written: {error.strerror}",
            "Check that the directory may be written to and that its disk has room.",
        ) from None


def unfinished(path: Path) -> list[Path]:
    """What `write_whole` was writing beside `path` when it was killed; nobody else may be writing it now."""
    start, end = f"{path.name}.", ".new"
    with contextlib.suppress(OSError):
        return [
            beside
            for beside in path.parent.iterdir()
            if beside.name.startswith(start)
            and beside.name.endswith(end)
            and beside.name[len(start) : -len(end)].isdigit()
        ]
    return []


def sync_directory(path: Path) -> None:
    """Make a rename in this directory last; where the system cannot, it lasts soon anyway."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
