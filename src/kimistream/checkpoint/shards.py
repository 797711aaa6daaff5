"""Finding the shards of a checkpoint in one or several directories.

Knows: the index decides which shards there are; without one, the file names do.
Does not know: what is in a shard.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kimistream.checkpoint.fetch import fetch
from kimistream.checkpoint.index import INDEX_NAME, Index
from kimistream.errors import CheckpointError, ShardError

_NUMBERED = re.compile(r"(.*-)([0-9]{5})(-of-)([0-9]{5,6})(\.safetensors)")


def find_shards(directory: Path, also: Sequence[Path], repo: str) -> tuple[Index | None, list[Path]]:
    """The index, if there is one, and the path of every shard, ordered by name.

    Shards that hold nothing but the image tower may be absent. Raises CheckpointError or ShardError.
    """
    places = [directory, *also]
    for place in also:
        if not place.is_dir():
            raise CheckpointError(f"{place} is not a directory", "Name directories that hold shards.")
    index_path = next((place / INDEX_NAME for place in places if (place / INDEX_NAME).is_file()), None)
    if index_path is None:
        return None, _by_file_names(places, repo)
    index = Index(index_path, repo)
    paths: list[Path] = []
    missing: list[str] = []
    for shard in index.hashes:
        path = next((place / shard for place in places if (place / shard).is_file()), None)
        if path is not None:
            paths.append(path)
        elif shard in index.text_shards:
            missing.append(shard)
    if missing:
        tensors = f"{len(index.hashes[missing[0]]):,}"
        many = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise ShardError(
            f"{missing[0]}{many} of the {len(index.hashes)} shards that {index_path} lists is missing from "
            f"{' and '.join(str(place) for place in places)}; the index puts {tensors} tensors into it",
            fetch(directory / missing[0], repo),
        )
    return index, paths


def _by_file_names(places: Sequence[Path], repo: str) -> list[Path]:
    """All shards of the directories, the first of each name; a numbered set must be whole."""
    found: dict[str, Path] = {}
    for place in places:
        try:
            here = sorted(
                path for path in place.iterdir() if path.suffix == ".safetensors" and path.is_file()
            )
        except OSError as error:
            raise CheckpointError(
                f"{place} cannot be listed: {error.strerror}", "Check its permissions."
            ) from None
        for path in here:
            found.setdefault(path.name, path)
    if not found:
        raise ShardError(
            f"{places[0]} holds neither {INDEX_NAME} nor any *.safetensors file",
            "Give the directory that holds the shards of a checkpoint.",
        )
    for name in sorted(found):
        if match := _NUMBERED.fullmatch(name):
            start, digits, of, total, end = match.groups()
            for number in range(1, min(int(total), 10_000) + 1):
                sibling = f"{start}{number:0{len(digits)}d}{of}{total}{end}"
                if sibling not in found:
                    raise ShardError(
                        f"{sibling} is missing from {places[0]}: {name} is one of {int(total)}",
                        fetch(places[0] / sibling, repo),
                    )
    return [found[name] for name in sorted(found)]
