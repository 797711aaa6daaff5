"""Result files: opened before the work starts, whole at the end or not there at all.

Knows: the .npy format, and how a file is made to appear at once.
Does not know: what the numbers mean.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kimistream.budget import format_size
from kimistream.errors import OutputError

_HEADER = 128


class LogitsFile:
    """A float32 `.npy` of shape `[rows, vocab]` written row by row; `close(keep=True)` makes it appear.

    Raises OutputError naming the path when it cannot be created, when the disk lacks room for
    `expected_rows`, or when a write fails.
    """

    def __init__(self, path: Path, vocab: int, expected_rows: int) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._vocab = vocab
        self._rows = 0
        self._closed = False
        needed = _HEADER + expected_rows * vocab * 4
        if path.is_dir():
            raise OutputError(f"--logits {path}: is a directory", "Name a file, for example logits.npy.")
        try:
            free = shutil.disk_usage(path.absolute().parent).free
            if free < needed:
                raise OutputError(
                    f"--logits {path}: {format_size(needed)} are needed and {format_size(free)} are free",
                    "Free some space, or name a file on another drive.",
                )
            self._file = self._partial.open("wb")
            self._file.write(b"\0" * _HEADER)
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> OutputError:
        return OutputError(
            f"--logits {self._path}: cannot be written ({error.strerror})",
            "Name a file in a directory that exists, that you may write to, and that has room.",
        )

    def append(self, logits: npt.NDArray[np.float32]) -> None:
        """Add float32 rows `[n, vocab]`."""
        try:
            self._file.write(np.ascontiguousarray(logits, "<f4").data)
            self._rows += len(logits)
        except OSError as error:
            self.close(keep=False)
            raise self._failed(error) from None

    def close(self, *, keep: bool) -> None:
        """Give the file its name, or leave nothing behind. Closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        if not keep:
            with contextlib.suppress(OSError):
                self._file.close()
            self._partial.unlink(missing_ok=True)
            return
        try:
            self._file.seek(0)
            self._file.write(_npy_header(self._rows, self._vocab))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._partial.replace(self._path)
        except OSError as error:
            self._partial.unlink(missing_ok=True)
            raise self._failed(error) from None


def _npy_header(rows: int, cols: int) -> bytes:
    buffer = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": (rows, cols)}
    np.lib.format.write_array_header_1_0(buffer, fields)
    header = buffer.getvalue()
    # version 1.0 pads with spaces before the newline and carries its length in two bytes
    text = header[10:].rstrip(b"\n ") + b" " * (_HEADER - 11 - len(header[10:].rstrip(b"\n "))) + b"\n"
    return header[:8] + (_HEADER - 10).to_bytes(2, "little") + text
