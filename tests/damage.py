"""Bytes changed inside files."""

from __future__ import annotations

from pathlib import Path


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, offset: int, bit: int = 1) -> None:
    """Change one bit of the byte at `offset`."""
    with path.open("rb") as file:
        file.seek(offset)
        old = file.read(1)[0]
    overwrite(path, offset, bytes([old ^ bit]))
