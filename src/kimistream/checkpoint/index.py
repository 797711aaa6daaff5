"""`model.safetensors.index.json`: which shards a checkpoint has, and which tensor lies in which.

Knows: how to read an index of half a million names in a bounded piece of memory.
Does not know: what is in the shards, or what a model needs.

The names are not kept: a shard's list is the 64-bit hashes of its names, 4 MB for the full K3 where the
strings would take 70. A name is looked up again in the file when a message has to say it.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.fetch import K3, fetch
from kimistream.checkpoint.manifest import is_inside
from kimistream.checkpoint.names import VISION_PREFIXES
from kimistream.errors import CheckpointError, ShardError

INDEX_NAME = "model.safetensors.index.json"
_PIECE = 1 << 20
_BETWEEN = re.compile(rb'"\s*,\s*"')


class _Index(msgspec.Struct):
    weight_map: msgspec.Raw


class Index:
    """The shards of an index file: `hashes[shard]` holds hash(name) of each tensor the index puts there."""

    def __init__(self, path: Path, repo: str = K3) -> None:
        """Read the file at `path`. Raises ShardError when it is not a valid index."""
        self.path = path
        self.repo = repo
        names: dict[str, array[int]] = {}
        text: set[str] = set()
        for piece in self._pieces():
            for name, shard in piece.items():
                if shard not in names:
                    names[shard] = array("q")
                names[shard].append(hash(name))
                if shard not in text and not name.startswith(VISION_PREFIXES):
                    text.add(shard)
        if not names:
            raise ShardError(
                f"{path}: weight_map lists 0 tensors; needed: one for each of the model", fetch(path, repo)
            )
        for shard in names:
            if not is_inside(shard) or "/" in shard or not shard.endswith(".safetensors"):
                raise ShardError(
                    f"{path}: weight_map names {shard[:80]!r}, which is not the name of a shard",
                    fetch(path, repo),
                )
        self.hashes: dict[str, npt.NDArray[np.int64]] = {
            shard: np.frombuffer(names[shard], np.int64) for shard in sorted(names)
        }
        self.text_shards = frozenset(text)
        """The shards with at least one tensor outside the image tower."""

    def absent(self, shard: str, names: list[str]) -> str | None:
        """A tensor that the index puts into `shard` and that is not among its `names`, or None."""
        held = np.fromiter((hash(name) for name in names), np.int64, len(names))
        missing = self.hashes[shard][~np.isin(self.hashes[shard], held)]
        if not len(missing):
            return None
        wanted = int(missing[0])
        return next(
            (
                name
                for piece in self._pieces()
                for name, where in piece.items()
                if hash(name) == wanted and where == shard
            ),
            "?",
        )

    def shard_of(self, name: str) -> str | None:
        """The shard into which the index puts a tensor."""
        return next((piece[name] for piece in self._pieces() if name in piece), None)

    def _pieces(self) -> Iterator[dict[str, str]]:
        """The weight map, some thousand names at a time."""
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be read: {error.strerror}", "Check its permissions."
            ) from None
        try:
            weight_map = memoryview(msgspec.json.decode(data, type=_Index).weight_map)
            yield from _split(weight_map)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ShardError(
                f"{self.path} is not a valid index: {error}", fetch(self.path, self.repo)
            ) from None


def _split(weight_map: memoryview) -> Iterator[dict[str, str]]:
    """Decode a JSON object of strings in pieces, cut between entries."""
    decode = msgspec.json.Decoder(dict[str, str]).decode
    start = 1
    while (cut := _BETWEEN.search(weight_map, start + _PIECE)) is not None:
        piece = b"{" + weight_map[start : cut.start() + 1] + b"}"
        try:
            decoded = decode(piece)
        except (msgspec.DecodeError, UnicodeDecodeError):
            break
        yield decoded
        start = cut.end() - 1
    yield decode(weight_map if start == 1 else b"{" + weight_map[start:])
