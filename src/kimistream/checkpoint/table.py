"""The tensor table: what a checkpoint directory holds, checked against what its config needs.

Knows: every tensor's file, offset, type and shape; which of them the model needs; that all are there.
Does not know: how they are read while generating (stream), or what is computed from them (model).

Dense tensors are a small dictionary; the routed experts, nearly all of the 497,220 tensors of K3, are
arrays. Everything is checked at open (DESIGN section 4): a checkpoint that opens has each needed tensor,
with the right shape and an accepted type, in files of exactly the size that their headers say.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.config import ModelConfig, parse_config, read_config_bytes
from kimistream.checkpoint.experts import ExpertCollector, ExpertTable
from kimistream.checkpoint.fetch import K3, KIMI_LINEAR, fetch
from kimistream.checkpoint.formats import FLOATS, WeightFormat
from kimistream.checkpoint.header import Header, read_exactly, read_header
from kimistream.checkpoint.index import Index
from kimistream.checkpoint.names import Need, expert_of, final_tensors, layer_tensors
from kimistream.checkpoint.shards import find_shards
from kimistream.errors import NumberError, ReadError, ShardError, TensorError

SAMPLE = 4096
"""Bytes at each end of a shard's data that go into the identity: two trainings of one shape have
the same headers, and differ here (the first bytes are float32 vectors, the last an expert)."""


class ShardFile(NamedTuple):
    """One file of the checkpoint."""

    path: Path
    size: int


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Where a dense tensor lies: `offset` and `nbytes` in bytes, in file number `file` of the checkpoint."""

    name: str
    file: int
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def format(self) -> WeightFormat:
        """BF16, F32 or F16. Only for tensors the model needs: others may have any dtype."""
        return FLOATS[self.dtype]


class Checkpoint:
    """A whole checkpoint, opened and checked. Use `Checkpoint.open`."""

    def __init__(
        self,
        directory: Path,
        config: ModelConfig,
        files: tuple[ShardFile, ...],
        dense: dict[str, TensorRef],
        experts: dict[int, ExpertTable],
        config_digest: bytes,
        headers: tuple[tuple[bytes, int], ...],
    ) -> None:
        self.directory = directory
        self.config = config
        self.files = files
        self._dense = dense
        self._experts = experts
        self._config_digest = config_digest
        self._headers = headers
        self._identity = ""

    @classmethod
    def open(cls, directory: str | Path, also: Iterable[str | Path] = ()) -> Checkpoint:
        """Read the config and all headers of a checkpoint and check them against each other.

        Shards may be spread over `directory`, which holds the config, and the directories of `also`, each
        shard in one of them. Raises CheckpointError, ShardError, TensorError or ConfigError.
        """
        directory = Path(directory)
        config_bytes = read_config_bytes(directory)
        config = parse_config(config_bytes, str(directory / "config.json"))
        repo = K3 if config.nested else KIMI_LINEAR
        index, paths = find_shards(directory, [Path(other) for other in also], repo)
        experts = ExpertCollector(config)
        dense: dict[str, TensorRef] = {}
        files: list[ShardFile] = []
        headers: list[tuple[bytes, int]] = []
        for number, path in enumerate(paths):
            header = read_header(path, repo)
            if index is not None and (name := index.absent(path.name, header.names)) is not None:
                raise ShardError(
                    f"{path} does not hold tensor {name}, which {index.path.name} puts there",
                    fetch(path, repo),
                )
            files.append(ShardFile(path, header.size))
            _collect(header, number, dense, experts, files)
            headers.append((header.digest, header.data_start))
        for need in _needs(config):
            _check(need, dense, files, index)
        digest = hashlib.sha256(config_bytes).digest()
        tables = experts.finish(files, index)
        return cls(directory, config, tuple(files), dense, tables, digest, tuple(headers))

    def dense(self, name: str) -> TensorRef:
        """A dense tensor by its name. Raises TensorError when the checkpoint has none of this name."""
        ref = self._dense.get(name)
        if ref is None:
            raise TensorError(
                f"{self.directory} has no tensor {name} among its {len(self._dense):,} that are no expert's",
                "`names()` lists them; those of experts are in `experts(layer)`.",
            )
        return ref

    def has(self, name: str) -> bool:
        """Whether there is a dense tensor of this name."""
        return name in self._dense

    def names(self) -> list[str]:
        """The names of all tensors but the routed experts, also of those that are not needed."""
        return list(self._dense)

    def layer(self, layer: int) -> dict[str, TensorRef]:
        """Role -> tensor, for all tensors of a layer (counted from 0) but its routed experts."""
        return {role: self._dense[need.name] for role, need in layer_tensors(self.config, layer).items()}

    def final(self) -> dict[str, TensorRef]:
        """Role -> tensor, for the tensors outside the layers."""
        return {role: self._dense[need.name] for role, need in final_tensors(self.config).items()}

    def experts(self, layer: int) -> ExpertTable:
        """The routed experts of a MoE layer. KeyError for a dense layer."""
        return self._experts[layer]

    @property
    def identity(self) -> str:
        """sha256 (hex) over the config, and the name, size, header and some data of each text shard.

        Equal for a copy of the checkpoint, whichever directories hold its shards; different for other
        sizes, other types, and another training of the same shape. Raises ReadError.
        """
        if not self._identity:
            self._identity = self._compute_identity()
        return self._identity

    def _compute_identity(self) -> str:
        digest = hashlib.sha256(self._config_digest)
        for number in self._used():
            path, size = self.files[number]
            header, start = self._headers[number]
            digest.update(path.name.encode() + b"\0" + size.to_bytes(8, "little") + header)
            for offset in (start, max(start, size - SAMPLE)):
                digest.update(self._read(number, offset, min(SAMPLE, size - offset)))
        return digest.hexdigest()

    def _used(self) -> list[int]:
        """The numbers of the shards with the text model's tensors, in the order of their names."""
        used = {self._dense[need.name].file for need in _needs(self.config)}
        for table in self._experts.values():
            used.update(np.unique(table.files).tolist())
        return sorted(used, key=lambda number: self.files[number].path.name)

    @property
    def config_digest(self) -> bytes:
        """sha256 of config.json."""
        return self._config_digest

    def shard_digests(self) -> list[tuple[str, int, bytes]]:
        """(name, bytes, sha256 of the header) of each shard with the text model's tensors."""
        return [(self.files[n].path.name, self.files[n].size, self._headers[n][0]) for n in self._used()]

    def read_bytes(self, name: str, start: int = 0, count: int | None = None) -> bytes:
        """Bytes of a dense tensor as they are stored, all or `count` from `start` on. Raises ReadError."""
        ref = self.dense(name)
        return self._read(ref.file, ref.offset + start, ref.nbytes - start if count is None else count)

    def shard_of(self, tensor: str) -> Path | None:
        """The file that holds a tensor, routed experts included; None for a name there is not."""
        if tensor in self._dense:
            return self.files[self._dense[tensor].file].path
        found = expert_of(self.config, tensor)
        if found is None or found[0] not in self._experts:
            return None
        layer, expert, column = found
        return self.files[int(self._experts[layer].files[expert, column])].path

    def how_to_fetch(self, tensor: str) -> str:
        """One sentence: the command that fetches the file of a tensor again."""
        path = self.shard_of(tensor)
        return fetch(path if path is not None else self.directory, self.repo)

    @property
    def repo(self) -> str:
        """Where checkpoints of this kind are published."""
        return K3 if self.config.nested else KIMI_LINEAR

    def read_vector(self, name: str) -> npt.NDArray[np.float32]:
        """A whole dense tensor as float32 of its stored shape, widened exactly.

        Raises NumberError for a NaN or an infinity, ReadError when the disk fails.
        """
        ref = self.dense(name)
        data = self._read(ref.file, ref.offset, ref.nbytes)
        values = widen(data, ref.dtype).reshape(ref.shape)
        finite = np.isfinite(values)
        if not finite.all():
            at = [int(i) for i in np.argwhere(~finite)[0]]
            raise NumberError(
                f"tensor {name} holds {values[tuple(at)]} at {at} (in {self.files[ref.file].path})",
                self.how_to_fetch(name),
            )
        return values

    def _read(self, file: int, offset: int, length: int) -> bytes:
        path = self.files[file].path
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise ReadError(
                f"{path} cannot be opened: {error.strerror}",
                "Check that it is still there, and that `ulimit -n` allows one more descriptor.",
            ) from None
        try:
            return read_exactly(handle, offset, length, path)
        finally:
            os.close(handle)


def widen(data: bytes, dtype: str) -> npt.NDArray[np.float32]:
    """Stored numbers as float32, exactly; `dtype` is BF16, F32 or F16."""
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype == "F16":
        return np.frombuffer(data, np.float16).astype(np.float32)
    return np.frombuffer(data, np.float32).copy()


def _needs(config: ModelConfig) -> list[Need]:
    needs = [need for i in range(config.num_layers) for need in layer_tensors(config, i).values()]
    return needs + list(final_tensors(config).values())


def _collect(
    header: Header,
    number: int,
    dense: dict[str, TensorRef],
    experts: ExpertCollector,
    files: Sequence[ShardFile],
) -> None:
    """Sort one shard's tensors into the dictionary and the arrays."""
    for i in experts.add(header, number, files):
        name = header.names[i]
        dtype, shape = header.kinds[header.kind[i]]
        if name in dense:
            raise ShardError(
                f"tensor {name} is in {files[dense[name].file].path} and in {header.path}",
                "Remove the file that does not belong to the checkpoint.",
            )
        offset, nbytes = int(header.offsets[i]), int(header.nbytes[i])
        dense[name] = TensorRef(name, number, offset, nbytes, dtype, shape)


def _check(need: Need, dense: dict[str, TensorRef], files: Sequence[ShardFile], index: Index | None) -> None:
    """Refuse a needed tensor that is absent, or has another shape or type than the model can use."""
    ref = dense.get(need.name)
    if ref is None:
        raise TensorError(
            f"tensor {need.name} {list(need.shape)} is needed by config.json and is in none of the "
            f"{len(files)} shards",
            f"Its config.json and its shards do not belong together: `kimistream verify {files[0].path.parent}` "
            "tells what is missing.",
        )
    count = int(np.prod(ref.shape, dtype=object))
    fits = count >= need.least if -1 in need.shape else ref.shape == need.shape
    if not fits:
        asked = f"at least {need.least} numbers" if -1 in need.shape else f"{list(need.shape)}"
        raise TensorError(
            f"tensor {need.name} has the shape {list(ref.shape)}, config.json asks for {asked} "
            f"(in {files[ref.file].path})",
            "Use the config.json that was released with these weights.",
        )
    if ref.dtype not in FLOATS:
        raise TensorError(
            f"tensor {need.name} is stored as {ref.dtype}; accepted: {', '.join(FLOATS)} "
            f"(in {files[ref.file].path})",
            "Use the checkpoint in the form it was released in.",
        )
