"""The bytes of a pack file: its header and its directory (docs/PACK.md).

Knows: where everything lies, and which digest covers which bytes.
Does not know: what a band holds inside (kernels.bands), or which checkpoint a pack belongs to (pack).

    0            the header, one page: identity, salt, where the directory is and its digest, its own digest
    4096         vectors, each padded to 64 bytes, then the runs of bands in tape order
    directory    JSON: what is where

Every byte belongs to one of these, and each of these is covered: the header by its own sha256, the directory
by sha256 in the header, a vector by sha256 in the directory, a band by the checksum it begins with. That one
also covers the band's place: its number in the file plus the header's salt, which differs between packs. So
neither a band of another place nor one of another pack is taken for the right one.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from kimistream.errors import PackError

MAGIC = b"KIMIPACK"
VERSION = 1
HEADER_BYTES = 4096
ALIGN = 64
"""Vectors and bands start on multiples of this many bytes."""
BAND_ROWS = 16
"""Rows of a matrix in one band."""
SAMPLE_BYTES = 4096
"""Bytes from the middle of each matrix in the checkpoint, whose digest the directory has."""

# magic, version, reserved, identity, salt, bytes of the file, directory: offset, bytes, sha256
_HEADER = struct.Struct("<8sII32sQQQQ32s")


class PackedRun(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Rows `row0 : row0 + rows` of a matrix as bands of `band_bytes` bytes from `offset` on.

    `form` names the stored form of the bands, `room` is the escapes each has room for (kernels.bands).
    """

    row0: int
    rows: int
    form: str
    room: int
    band_bytes: int
    offset: int

    @property
    def bands(self) -> int:
        return -(-self.rows // BAND_ROWS)

    @property
    def nbytes(self) -> int:
        return self.bands * self.band_bytes


class PackedMatrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A dense matrix `[rows, cols]`; `dtype` in the checkpoint, `sample` see `sample_digest`."""

    name: str
    dtype: str
    rows: int
    cols: int
    sample: str
    runs: tuple[PackedRun, ...]


class PackedVector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A small tensor as the checkpoint has it: `nbytes` bytes from `offset` on, zeros up to a multiple of 64."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    sha256: str


class Source(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One shard of the checkpoint; sha256 of its header in hex."""

    name: str
    size: int
    header: str


class Directory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a pack holds, and what it was made from: the sha256 of config.json and each shard's header."""

    config: str
    shards: tuple[Source, ...]
    vectors: tuple[PackedVector, ...]
    matrices: tuple[PackedMatrix, ...]


class PackHeader(NamedTuple):
    """The first page. `identity`: `Checkpoint.identity`, as bytes; `nbytes`: of the whole file."""

    identity: bytes
    salt: int
    """Added to a band's number in its checksum; below 2^62."""
    nbytes: int
    directory_offset: int
    directory_bytes: int
    directory_sha256: bytes


def salt_of(identity: bytes, cut: bytes) -> int:
    """The salt of the pack of a checkpoint: from its identity and the digest of how it is cut into runs."""
    return int.from_bytes(hashlib.sha256(b"pack" + identity + cut).digest()[:8], "little") >> 2


def encode_header(header: PackHeader) -> bytes:
    """The first page of a pack."""
    fixed = _HEADER.pack(MAGIC, VERSION, 0, *header)
    return (fixed + hashlib.sha256(fixed).digest()).ljust(HEADER_BYTES, b"\0")


def decode_header(data: bytes, path: Path, size: int) -> PackHeader:
    """The header of the file at `path`, which has `size` bytes. Raises PackError."""
    if not data.startswith(MAGIC):
        what = "nothing" if not data.strip(b"\0") else f"{data[:8]!r}"
        refuse(path, f"is not a pack: it begins with {what}, not with {MAGIC!r}", unfinished=True)
    if len(data) < HEADER_BYTES:
        refuse(path, f"is cut short: it has {size:,} bytes, the header alone has {HEADER_BYTES:,}")
    _, version, _, *fields = _HEADER.unpack_from(data)
    end = _HEADER.size
    whole = hashlib.sha256(data[:end]).digest() == data[end : end + 32] and not data[end + 32 :].strip(b"\0")
    if not whole and version == VERSION:
        refuse(path, "is damaged: its header does not match its checksum")
    if version != VERSION:
        raise PackError(
            f"{path} has format {version}, understood is {VERSION}",
            "Use the kimistream that made it, or make it again with `kimistream pack`.",
        )
    header = PackHeader(*fields)
    if header.salt >> 62:
        refuse(path, "has a header that does not hold: its salt is too large")
    if size != header.nbytes:
        wrong = "is cut short" if size < header.nbytes else "is too long"
        refuse(path, f"{wrong}: it has {size:,} bytes, its header says {header.nbytes:,}")
    return header


def encode_directory(directory: Directory) -> bytes:
    """The directory as it stands in the file."""
    return msgspec.json.encode(directory)


def decode_directory(data: bytes, path: Path) -> Directory:
    """The directory from its bytes. Raises PackError."""
    try:
        return msgspec.json.decode(data, type=Directory)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        refuse(path, f"has a directory that is not understood: {error}")


def check_layout(directory: Directory, header: PackHeader, path: Path) -> None:
    """Whether the directory's entries tile the file from the header to the directory. Raises PackError."""
    at = HEADER_BYTES
    for vector in directory.vectors:
        if vector.offset != at or vector.nbytes < 0:
            refuse(path, f"has a directory that does not hold: {vector.name} is not at byte {at:,}")
        at += padded(vector.nbytes)
    for matrix in directory.matrices:
        row = 0
        for run in matrix.runs:
            fits = run.row0 == row and run.rows > 0 and run.offset == at
            fits = fits and run.band_bytes > 0 and run.band_bytes % ALIGN == 0
            if not fits or (run.rows % BAND_ROWS and row + run.rows != matrix.rows):
                refuse(path, f"has a directory that does not hold: {matrix.name} from row {row}")
            row, at = row + run.rows, at + run.nbytes
        if row != matrix.rows:
            refuse(path, f"has a directory that does not hold: {matrix.name} has {row} of {matrix.rows} rows")
    if at != header.directory_offset or at + header.directory_bytes != header.nbytes:
        refuse(path, "has a directory that does not hold: its entries do not fill the file")


def padded(nbytes: int) -> int:
    """`nbytes` rounded up to where the next entry begins."""
    return -(-nbytes // ALIGN) * ALIGN


def sample_range(nbytes: int) -> tuple[int, int]:
    """(first byte, count) of the sample of a matrix of `nbytes` bytes: its middle."""
    count = min(SAMPLE_BYTES, nbytes)
    return (nbytes - count) // 2, count


def sample_digest(data: bytes) -> str:
    """The digest of a sample: half a sha256, in hex."""
    return hashlib.sha256(data).hexdigest()[:32]


def refuse(path: Path, what: str, *, unfinished: bool = False) -> NoReturn:
    """The refusal of a file that is no sound pack."""
    again = f"Delete it and make it again: kimistream pack CHECKPOINT {path}"
    finished = "Name a file that `kimistream pack CHECKPOINT FILE` has finished."
    raise PackError(f"{path} {what}", again if not unfinished else finished)
