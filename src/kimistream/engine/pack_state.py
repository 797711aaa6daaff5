"""What a pack under way remembers, so that a killed run goes on to the same bytes.

Knows: the journal beside the partial file: one line for each group of runs that is on the disk.
Does not know: what a group is made of, or how it is written.

A line is appended only after the bytes it tells of have reached the disk. Each ends with its own checksum, so
that a line that was cut by a kill, and all behind it, count as not written. The first line names the checkpoint
and the cut into groups; a journal of another checkpoint or another cut counts for nothing.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

import msgspec

from kimistream.checkpoint.whole import unfinished, write_whole
from kimistream.stream.writer import failed

JOURNAL = ".journal"


class Made(msgspec.Struct, frozen=True, array_like=True):
    """One stretch of the pack: a vector (`form` empty, `digest` its sha256) or a run of bands."""

    form: str
    room: int
    nbytes: int
    digest: str = ""


class Group(msgspec.Struct, frozen=True):
    """A group that is on the disk: what it became, and the byte of the file behind it."""

    made: tuple[Made, ...]
    end: int


class _Head(msgspec.Struct, frozen=True):
    identity: str
    cut: str
    format: int = 1


class Journal:
    """The journal of one pack, which an earlier run may have begun. Raises OutputError where it cannot write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, identity: str, cut: str, size: int) -> list[Group]:
        """The groups that an earlier run has put into the partial file, which has `size` bytes.

        The journal then tells of these and no others.
        """
        head = msgspec.json.encode(_Head(identity, cut))
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise failed(self.path, error) from None
        lines = _lines(data)
        groups: list[Group] = []
        told = [head]
        if lines and lines[0] == head:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                for line in lines[1:]:
                    group = msgspec.json.decode(line, type=Group)
                    if group.end > size:
                        break
                    if groups and group.end <= groups[-1].end:
                        continue  # interrupted between noting it and knowing so, a run notes it twice
                    groups.append(group)
                    told.append(line)
        kept = b"".join(map(_line, told))
        if kept != data:
            write_whole(self.path, kept)
        return groups

    def append(self, groups: list[Group]) -> None:
        """Remember groups whose bytes are on the disk."""
        data = b"".join(_line(msgspec.json.encode(group)) for group in groups)
        try:
            with self.path.open("ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise failed(self.path, error) from None

    def remove(self) -> None:
        """The pack is whole: the journal goes, and what kills left of writing it."""
        with contextlib.suppress(OSError):
            for path in (self.path, *unfinished(self.path)):
                path.unlink(missing_ok=True)


def _line(body: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _lines(data: bytes) -> list[bytes]:
    """The bodies of the lines up to the first that is not whole."""
    bodies: list[bytes] = []
    for line in data.splitlines(keepends=True):
        if line != _line(line[9:-1]):
            break
        bodies.append(line[9:-1])
    return bodies
