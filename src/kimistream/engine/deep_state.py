"""What an interrupted deep check remembers, so that the next one does not read the same files again.

Knows: `.kimistream/verify.json`, and when what it says no longer holds.
Does not know: how files are checked.

A file counts as read only while its size and time are those it had, and only for a week: the point of
reading is to see what the disk holds now. A check that comes to its end forgets everything.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from kimistream.checkpoint.scan import Trouble
from kimistream.checkpoint.whole import FOLDER, write_whole
from kimistream.errors import OutputError

STATE_NAME = "verify.json"
GOOD_FOR = 7 * 86400
"""Seconds."""
SAVE_EVERY = 1.0
"""Seconds; a kill costs no more than this of small files."""


class ReadFile(msgspec.Struct, frozen=True):
    """The outcome of one file; `error` is set instead of the rest where the disk failed."""

    size: int
    mtime_ns: int
    sha256: str = ""
    marks: bytes = b""
    troubles: tuple[Trouble, ...] = ()
    error: str = ""


class _State(msgspec.Struct):
    began: float
    files: dict[str, ReadFile]
    format: int = 1


class DeepState:
    """The memory of one directory; one that cannot be written to is checked all the same."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FOLDER / STATE_NAME
        self._state = _State(time.time(), {})
        self._saved = 0.0
        self.writable = True

    def load(self, paths: dict[str, Path]) -> dict[str, ReadFile]:
        """The outcomes that still hold."""
        try:
            state = msgspec.json.decode(self._path.read_bytes(), type=_State)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}
        if not 0 <= time.time() - state.began < GOOD_FOR:
            return {}
        kept = {}
        for name, outcome in state.files.items():
            if name in paths and not outcome.error:
                with contextlib.suppress(OSError):
                    status = paths[name].stat()
                    if (status.st_size, status.st_mtime_ns) == (outcome.size, outcome.mtime_ns):
                        kept[name] = outcome
        self._state = _State(state.began, kept)
        return dict(kept)

    def add(self, name: str, outcome: ReadFile) -> None:
        """Remember one more file; on the disk within `SAVE_EVERY` seconds of work."""
        self._state.files[name] = outcome
        if time.monotonic() - self._saved >= SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Put what is remembered on the disk now."""
        self._saved = time.monotonic()
        if self.writable and self._state.files:
            try:
                write_whole(self._path, msgspec.json.encode(self._state))
            except OutputError:
                self.writable = False

    def forget(self) -> None:
        """The check is done."""
        with contextlib.suppress(OSError):
            self._path.unlink()
            self._path.parent.rmdir()
