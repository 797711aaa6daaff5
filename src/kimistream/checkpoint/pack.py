"""A pack file opened: checked, held against the checkpoint it is to be used with, its vectors read.

Knows: the file's structure (pack_format) and how to tell that it was made from this very checkpoint.
Does not know: what is inside a band, or who reads the bands while generating.

What is compared with the checkpoint: config.json, and name, size and header of each shard; the first and last
bytes of each shard (`Checkpoint.identity`); and a page from the middle of every matrix, so that a fine-tuned
model, whose headers are the same, is told apart even where only some of its matrices were trained.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.header import read_exactly
from kimistream.checkpoint.pack_format import (
    HEADER_BYTES,
    Directory,
    PackedMatrix,
    PackedVector,
    PackHeader,
    check_layout,
    decode_directory,
    decode_header,
    padded,
    refuse,
    sample_digest,
    sample_range,
)
from kimistream.checkpoint.table import Checkpoint, widen
from kimistream.errors import NumberError, PackError

PARTIAL = ".partial"
"""What is appended to the name of a pack while it is being made."""
MOST_LISTED = 1 << 28
"""Bytes of a directory; that of Kimi K3 has less than a hundredth."""


class Pack:
    """An open pack. Use `Pack.open`."""

    def __init__(self, path: Path, header: PackHeader, directory: Directory) -> None:
        self.path = path
        self.header = header
        self.directory = directory
        self.size = header.nbytes
        self._matrices: dict[str, tuple[PackedMatrix, int]] = {}
        band = 0
        for matrix in directory.matrices:
            self._matrices[matrix.name] = (matrix, band)
            band += sum(run.bands for run in matrix.runs)
        self._vectors = {vector.name: vector for vector in directory.vectors}

    @classmethod
    def open(cls, path: str | Path, checkpoint: Checkpoint | None = None) -> Pack:
        """Open a pack, check all but its bands and vectors, and that it was made from `checkpoint`.

        Raises PackError for a file that is not a whole pack, or is one of another checkpoint; ReadError.
        """
        path = Path(path)
        handle = _open(path)
        try:
            size = os.fstat(handle).st_size
            header = decode_header(read_exactly(handle, 0, min(HEADER_BYTES, size), path), path, size)
            listed = _listed(handle, header, path)
        finally:
            os.close(handle)
        directory = decode_directory(listed, path)
        check_layout(directory, header, path)
        pack = cls(path, header, directory)
        if checkpoint is not None:
            pack.require(checkpoint)
        return pack

    def require(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint that this pack was not made from. Raises PackError, ReadError."""
        difference = self._difference(checkpoint)
        if difference:
            where = shlex.quote(str(checkpoint.directory))
            raise PackError(
                f"{self.path} was made from another checkpoint than {checkpoint.directory}: {difference}",
                f"Make one for this checkpoint: kimistream pack {where} OTHER.pack",
            )

    def _difference(self, checkpoint: Checkpoint) -> str:
        """The first difference in words, or nothing."""
        made = {source.name: source for source in self.directory.shards}
        found = {name: (size, header.hex()) for name, size, header in checkpoint.shard_digests()}
        if made.keys() != found.keys():
            name = sorted(made.keys() ^ found.keys())[0]
            return f"only {'the pack' if name in made else 'the checkpoint'} has a shard {name}"
        for name, source in made.items():
            size, header = found[name]
            if size != source.size:
                return f"{name} has {size:,} bytes, that of the pack had {source.size:,}"
            if header != source.header:
                return f"the header of {name} is another"
        if checkpoint.config_digest.hex() != self.directory.config:
            return "config.json is another"
        if bytes.fromhex(checkpoint.identity) != self.header.identity:
            return "the first or last bytes of a shard are others"
        for matrix, _ in self._matrices.values():
            if not checkpoint.has(matrix.name):
                return f"it has no tensor {matrix.name}"
            ref = checkpoint.dense(matrix.name)
            if ref.shape != (matrix.rows, matrix.cols) or ref.dtype != matrix.dtype:
                return f"tensor {matrix.name} has another shape or type"
            start, count = sample_range(ref.nbytes)
            if sample_digest(checkpoint.read_bytes(matrix.name, start, count)) != matrix.sample:
                return f"the numbers of tensor {matrix.name} are others"
        return ""

    def matrix(self, name: str) -> tuple[PackedMatrix, int]:
        """A matrix, and the number of its first band in the file. Raises PackError."""
        found = self._matrices.get(name)
        if found is None:
            refuse(self.path, f"has no matrix {name}, which the model needs")
        return found

    def vector(self, name: str) -> PackedVector:
        """Where a vector lies. Raises PackError."""
        found = self._vectors.get(name)
        if found is None:
            refuse(self.path, f"has no vector {name}, which the model needs")
        return found

    def read_vector(self, name: str) -> npt.NDArray[np.float32]:
        """A vector as float32 of its stored shape, widened exactly.

        Raises PackError when its bytes are not those that were written, NumberError for a NaN or an
        infinity, ReadError when the disk fails.
        """
        vector = self.vector(name)
        handle = _open(self.path)
        try:
            data = read_exactly(handle, vector.offset, padded(vector.nbytes), self.path)
        finally:
            os.close(handle)
        if hashlib.sha256(data).hexdigest() != vector.sha256:
            end = vector.offset + vector.nbytes
            refuse(
                self.path,
                f"is damaged: vector {name} (bytes {vector.offset:,} to {end:,}) is not as it was written",
            )
        values = widen(data[: vector.nbytes], vector.dtype).reshape(vector.shape)
        if not np.isfinite(values).all():
            raise NumberError(
                f"vector {name} in {self.path} holds a NaN or an infinity",
                "The checkpoint it was made from has it too: check that with `kimistream verify --deep`.",
            )
        return values


def _open(path: Path) -> int:
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        begun = path.with_name(path.name + PARTIAL).exists()
        state = "is not finished yet" if begun else "does not exist"
        remedy = f"Run: kimistream pack CHECKPOINT {shlex.quote(str(path))}"
        raise PackError(f"the pack {path} {state}", remedy) from None
    except OSError as error:
        raise PackError(
            f"the pack {path} cannot be opened: {error.strerror}", "Check its permissions."
        ) from None
    if not os.path.isfile(path):
        os.close(handle)
        raise PackError(f"the pack {path} is not a file", "Name the file that `kimistream pack` made.")
    return handle


def _listed(handle: int, header: PackHeader, path: Path) -> bytes:
    """The bytes of the directory, once they match their digest."""
    offset, nbytes = header.directory_offset, header.directory_bytes
    if offset + nbytes > header.nbytes or nbytes > MOST_LISTED:
        refuse(path, "is damaged: its directory does not lie inside the file")
    data = read_exactly(handle, offset, nbytes, path)
    if hashlib.sha256(data).digest() != header.directory_sha256:
        refuse(path, "is damaged: its directory does not match its checksum")
    return data
