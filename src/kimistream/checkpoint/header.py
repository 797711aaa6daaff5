"""The header of one safetensors file, read and held against the file itself.

Knows: the safetensors format: 8 bytes of length, a JSON object, then the tensors' bytes.
Does not know: which tensors a model needs.

A header that is accepted here covers the file exactly: every tensor inside the data, none overlapping
another, no byte between them or behind them that belongs to none, each as long as its type and shape say.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.fetch import K3, fetch
from kimistream.checkpoint.formats import WIDTH_BITS
from kimistream.errors import ReadError, ShardError

MAX_HEADER = 100_000_000
"""Bytes; the limit of the safetensors format. The released headers have up to 0.8 MB."""
_LENGTH = 8
_PIECE = 64 << 20

Kind = tuple[str, tuple[int, ...]]
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Entry(msgspec.Struct, gc=False):
    """One tensor as the header has it; `data_offsets` count from the first byte behind the header."""

    dtype: str = ""
    shape: tuple[Size, ...] = ()
    data_offsets: tuple[Size, Size] | None = None


_fast = msgspec.json.Decoder(dict[str, Entry])
_careful = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Header:
    """A valid header. The tensors are in the order of the file's JSON; offsets count from its start."""

    path: Path
    size: int
    """Bytes of the file."""
    digest: bytes
    """sha256 of the length and the JSON."""
    data_start: int
    names: list[str]
    entries: list[Entry]
    kinds: list[Kind]
    """The different (dtype, shape) of the tensors; there are few."""
    kind: npt.NDArray[np.int64]
    """For each tensor its place in `kinds`."""
    offsets: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]

    def __iter__(self) -> Iterator[tuple[str, Entry, int, int]]:
        """(name, entry, offset in the file, bytes) of each tensor."""
        return zip(self.names, self.entries, self.offsets.tolist(), self.nbytes.tolist(), strict=True)


def read_header(path: Path, repo: str = K3) -> Header:
    """Read and check the header of the file at `path`; `repo` is where the remedy fetches it from.

    Raises ShardError when the file or its header does not hold, ReadError when the disk fails.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise ShardError(
            f"{path} cannot be opened: {error.strerror}", "Check that it is there and its permissions."
        ) from None
    try:
        size = os.fstat(handle).st_size
        head = read_exactly(handle, 0, min(_LENGTH, size), path)
        if size < _LENGTH:
            raise ShardError(
                f"{path} is cut short: it has {size} bytes, the length of a header alone has {_LENGTH}",
                fetch(path, repo),
            )
        length = int.from_bytes(head, "little")
        _check_length(path, size, length, repo)
        data = read_exactly(handle, _LENGTH, length, path)
    finally:
        os.close(handle)
    names, entries = _decode(path, data, repo)
    digest = hashlib.sha256(head)
    digest.update(data)
    start = _LENGTH + length
    kinds, kind = _kinds(entries)
    begins, nbytes = _check_ranges(path, size, start, names, entries, kinds, kind, repo)
    return Header(path, size, digest.digest(), start, names, entries, kinds, kind, begins + start, nbytes)


def read_exactly(handle: int, offset: int, length: int, path: Path) -> bytes:
    """`length` bytes at `offset`, however many reads that takes. Raises ReadError."""
    pieces = []
    while length > 0:
        try:
            piece = os.pread(handle, min(length, _PIECE), offset)
        except OSError as error:
            raise ReadError(
                f"{path}: reading {length:,} bytes at {offset:,} failed: {error.strerror}",
                "Check the disk (dmesg, smartctl) and fetch the file again.",
            ) from None
        if not piece:
            raise ReadError(
                f"{path} ends at byte {offset:,}, {length:,} bytes too early",
                "Something cuts it while it is read; when that is over, run `kimistream verify`.",
            )
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return b"".join(pieces)


def _check_length(path: Path, size: int, length: int, repo: str) -> None:
    if length > MAX_HEADER:
        raise ShardError(
            f"{path} does not begin like a safetensors file: its header would have {length:,} bytes, "
            f"the format allows {MAX_HEADER:,} (the file has {size:,})",
            fetch(path, repo),
        )
    if _LENGTH + length > size:
        raise ShardError(
            f"{path} is cut short: it has {size:,} bytes, its header alone needs {_LENGTH + length:,}",
            fetch(path, repo),
        )


def _decode(path: Path, data: bytes, repo: str) -> tuple[list[str], list[Entry]]:
    try:
        found = _fast.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Once more, slowly: either the metadata only looked like a tensor, or the message names the tensor.
        found = _decode_carefully(path, data, repo)
    found.pop("__metadata__", None)
    return list(found.keys()), list(found.values())


def _decode_carefully(path: Path, data: bytes, repo: str) -> dict[str, Entry]:
    try:
        raw = _careful.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ShardError(f"{path}: the header is not valid JSON: {error}", fetch(path, repo)) from None
    raw.pop("__metadata__", None)
    found = {}
    for name, value in raw.items():
        try:
            found[name] = msgspec.json.decode(value, type=Entry)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ShardError(
                f"{path}: the header's entry of tensor {name} is not understood: {error}", fetch(path, repo)
            ) from None
    return found


def _kinds(entries: list[Entry]) -> tuple[list[Kind], npt.NDArray[np.int64]]:
    """The different (dtype, shape), and for each entry its place among them."""
    each = [(entry.dtype, entry.shape) for entry in entries]
    places = {kind: place for place, kind in enumerate(dict.fromkeys(each))}
    return list(places), np.array([places[kind] for kind in each], np.int64)


def _check_ranges(
    path: Path,
    size: int,
    start: int,
    names: list[str],
    entries: list[Entry],
    kinds: list[Kind],
    kind: npt.NDArray[np.int64],
    repo: str,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First byte (in the data) and length of each tensor, once they are known to tile the data."""

    def refuse(what: str) -> NoReturn:
        raise ShardError(f"{path}: {what}", fetch(path, repo))

    lengths = np.empty(len(kinds), np.int64)
    for place, (dtype, shape) in enumerate(kinds):
        name = names[int(np.argmax(kind == place))]
        width = WIDTH_BITS.get(dtype)
        if width is None:
            refuse(f'tensor {name} has the unknown dtype "{dtype}"; known: {", ".join(WIDTH_BITS)}')
        length = -(-math.prod(shape) * width // 8)
        if length > 1 << 62:
            refuse(
                f"tensor {name} of {dtype} {list(shape)} would have {length:,} bytes, the file has {size:,}"
            )
        lengths[place] = length
    ranges = [entry.data_offsets for entry in entries]
    if None in ranges:
        refuse(f"tensor {names[ranges.index(None)]} has no data_offsets in the header")
    both = np.array(ranges, np.int64).reshape(-1, 2)
    begins, ends = both[:, 0], both[:, 1]
    unequal = np.flatnonzero(ends - begins != lengths[kind])
    if len(unequal):
        first = int(unequal[0])
        dtype, shape = kinds[kind[first]]
        held = f"tensor {names[first]} has {ends[first] - begins[first]:,} bytes"
        refuse(f"{held}, its {dtype} {list(shape)} needs {lengths[kind[first]]:,}")
    _check_tiling(begins, ends, names, refuse)
    actual, promised = size - start, int(ends.max(initial=0))
    if actual != promised:
        less = f"cut short by {promised - actual:,} bytes"
        more = f"{actual - promised:,} bytes too long"
        wrong = less if actual < promised else more
        refuse(f"{wrong}: the file has {size:,} bytes, its header says {start + promised:,}")
    return begins, ends - begins


def _check_tiling(
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    names: list[str],
    refuse: Callable[[str], NoReturn],
) -> None:
    order = np.lexsort((ends, begins))
    starts = begins[order]
    previous = np.concatenate((np.zeros(1, np.int64), ends[order][:-1]))[: len(order)]
    wrong = np.flatnonzero(starts != previous)
    if not len(wrong):
        return
    at = int(wrong[0])
    name = names[int(order[at])]
    if starts[at] > previous[at]:
        gap = f"bytes {previous[at]} to {starts[at]} of the data belong to no tensor"
        refuse(f"{gap} (before {name})")
    other = names[int(order[at - 1])]
    refuse(
        f"tensors {other} and {name} overlap: one ends at {previous[at]}, the other begins at {starts[at]}"
    )
