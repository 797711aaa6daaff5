"""`verify`: is this directory a whole checkpoint? Everything that can be told without reading the weights.

Knows: config, index, headers, sizes, table, manifest sizes, holes; it collects all that is wrong instead of
stopping at the first. Does not know: how every byte is read (deep), or how it is shown (cli).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from kimistream.checkpoint.config import load_config
from kimistream.checkpoint.fetch import K3, KIMI_LINEAR
from kimistream.checkpoint.header import Header, read_header
from kimistream.checkpoint.holes import holes
from kimistream.checkpoint.index import INDEX_NAME, Index
from kimistream.checkpoint.manifest import MANIFEST_NAME, Manifest, read_manifest
from kimistream.checkpoint.shards import find_file, find_shards, places_of
from kimistream.checkpoint.table import Checkpoint
from kimistream.engine.findings import Finding, Origin, origin_of
from kimistream.errors import CheckpointError, KimistreamError, ReadError


@dataclass(slots=True)
class Inspected:
    """What a look at a directory found. `paths`: every file that belongs to it, by name."""

    directory: Path
    manifest: Manifest | None
    origin: Origin
    paths: dict[str, Path] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    shards: set[str] = field(default_factory=set)
    """The files whose headers hold."""
    findings: list[Finding] = field(default_factory=list)
    tensors: int = 0
    refused: KimistreamError | None = None
    """Why it does not open."""

    def repair(self, name: str) -> str:
        """The command that fetches one file again, to where it is."""
        path = self.paths.get(name)
        return replace(self.origin, directory=path.parent if path else self.directory).repair(name)

    @property
    def nbytes(self) -> int:
        return sum(self.sizes.values())

    def header(self, name: str) -> Header | None:
        """The header of a shard, read again: all of them together would take 200 MB for the released model."""
        if name not in self.shards:
            return None
        try:
            return read_header(self.paths[name])
        except KimistreamError:
            return None  # it has changed meanwhile; its digest will tell

    def tensor_at(self, name: str, offset: int) -> str | None:
        """The tensor of a shard that holds the byte at `offset`, if one does."""
        header = self.header(name)
        if header is None:
            return None
        inside = np.flatnonzero((header.offsets <= offset) & (offset < header.offsets + header.nbytes))
        return header.names[int(inside[0])] if len(inside) else None


def inspect(directory: str | Path, also: Iterable[str | Path] = ()) -> Inspected:
    """Look at a checkpoint directory (and at further ones that hold some of its shards).

    Raises CheckpointError or ConfigError only where there is nothing to look at: no directory, no usable
    config.json, a broken manifest. All else that is wrong is a finding.
    """
    directory = Path(directory)
    others = [Path(place) for place in also]
    places = places_of(directory, others)
    config = load_config(directory)
    manifest = read_manifest(directory)
    found = Inspected(directory, manifest, origin_of(directory, manifest))
    repo = K3 if config.nested else KIMI_LINEAR
    _find_files(found, places, repo)
    if found.findings or not _opens(found, others):
        for name, path in found.paths.items():
            if name.endswith(".safetensors"):
                _look_at_shard(found, name, path, repo)
    if not found.findings and found.refused is not None:
        error = found.refused  # not a file of its own: they do not fit each other
        found.findings.append(Finding(directory.name or str(directory), error.what, error.remedy))
    _compare_sizes(found)
    _look_for_holes(found)
    return found


def _opens(found: Inspected, others: list[Path]) -> bool:
    """Whether all of it opens; then every header holds. Otherwise `refused` says why not."""
    try:
        opened = Checkpoint.open(found.directory, others)
    except ReadError:
        raise
    except KimistreamError as error:
        found.refused = error
        return False
    found.shards = {file.path.name for file in opened.files}
    config = opened.config
    parts = [sum(size > 0 for size in opened.experts(layer).sizes) for layer in config.moe_layers]
    found.tensors = len(opened.names()) + config.moe.num_experts * sum(parts)
    return True


def _find_files(found: Inspected, places: list[Path], repo: str) -> None:
    """All shards, by the index or by their names, and all files of the manifest; what is missing is said."""
    names = {"config.json", INDEX_NAME}
    missing: dict[str, str] = {}
    index = _read_index(found, places, repo)
    if index is not None:
        names |= set(index.hashes)
        for shard in index.text_shards:  # the image tower may be absent
            missing[shard] = f"is missing; {INDEX_NAME} puts {len(index.hashes[shard]):,} tensors into it"
    elif not found.findings:
        try:
            names |= {path.name for path in find_shards(places[0], places[1:], repo)[1]}
        except CheckpointError as error:
            found.findings.append(Finding(str(places[0]), error.what, error.remedy))
    for name in found.manifest.files if found.manifest is not None else ():
        names.add(name)
        missing.setdefault(name, f"is missing; {MANIFEST_NAME} lists it")
    for name in sorted(names):
        try:
            # of all that is no shard, the first counts
            path = find_file(places, name) if name.endswith(".safetensors") else _first(places, name)
        except CheckpointError as error:
            found.findings.append(Finding(name, error.what, error.remedy))
            continue
        if path is not None:
            found.paths[name] = path
            found.sizes[name] = path.stat().st_size
        elif name in missing:
            found.findings.append(Finding(name, missing[name], found.repair(name)))


def _first(places: list[Path], name: str) -> Path | None:
    return next((place / name for place in places if (place / name).is_file()), None)


def _read_index(found: Inspected, places: list[Path], repo: str) -> Index | None:
    path = _first(places, INDEX_NAME)
    if path is None:
        return None
    try:
        return Index(path, repo)
    except KimistreamError as error:
        what = error.what.removeprefix(f"{path}: ")
        found.findings.append(Finding(INDEX_NAME, what, found.repair(INDEX_NAME)))
        return None


def _look_at_shard(found: Inspected, name: str, path: Path, repo: str) -> None:
    try:
        header = read_header(path, repo)
    except KimistreamError as error:
        found.findings.append(Finding(name, error.what.removeprefix(f"{path}: "), found.repair(name)))
        return
    found.shards.add(name)
    found.tensors += len(header.names)


def _compare_sizes(found: Inspected) -> None:
    if found.manifest is None:
        return
    told = {finding.file for finding in found.findings}
    for name, entry in found.manifest.files.items():
        size = found.sizes.get(name)
        if size is not None and size != entry.size and name not in told:
            found.findings.append(
                Finding(
                    name,
                    f"has {size:,} bytes, {MANIFEST_NAME} says {entry.size:,}",
                    found.repair(name),
                )
            )


def _look_for_holes(found: Inspected) -> None:
    """Holes read as zeros. They can be right (zeros that a copy left out): `deep` clears those by digest."""
    for name, path in found.paths.items():
        gaps = holes(path)
        if not gaps:
            continue
        offset, size = max(gaps, key=lambda gap: gap[1])
        lost = sum(nbytes for _, nbytes in gaps)
        found.findings.append(
            Finding(
                name,
                f"{len(gaps)} holes, {lost:,} bytes that the disk does not hold and that read as zeros; the "
                f"largest has {size:,} bytes from byte {offset:,} on",
                found.repair(name),
                found.tensor_at(name, offset),
                zeros=True,
            )
        )
