"""Finding the shards of a checkpoint in one or several directories.

Knows: the index decides which shards there are; without one, the file names do.
Does not know: what is in a shard.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from kimistream.checkpoint.fetch import fetch
from kimistream.checkpoint.index import INDEX_NAME, Index
from kimistream.errors import CheckpointError, ShardError

_NUMBERED = re.compile(r"(.*-)([0-9]{5})(-of-)([0-9]{5,6})(\.safetensors)")


def find_shards(directory: Path, also: Sequence[Path], repo: str) -> tuple[Index | None, list[Path]]:
    """The index, if there is one, and the path of every shard, ordered by name.

    Shards that hold nothing but the image tower may be absent. Raises CheckpointError or ShardError, also
    for a shard that is in two of the directories: which one counts is not for the program to guess.
    """
    places = places_of(directory, also)
    index_path = next((place / INDEX_NAME for place in places if (place / INDEX_NAME).is_file()), None)
    if index_path is None:
        return None, _by_file_names(places, repo)
    index = Index(index_path, repo)
    paths: list[Path] = []
    missing: list[str] = []
    for shard in index.hashes:
        path = find_file(places, shard)
        if path is not None:
            paths.append(path)
        elif shard in index.text_shards:
            missing.append(shard)
    if missing:
        tensors = f"{len(index.hashes[missing[0]]):,}"
        many = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise ShardError(
            f"{missing[0]}{many} of the {len(index.hashes)} shards that {index_path} lists is missing from "
            f"{in_words(places)}; the index puts {tensors} tensors into it",
            fetch(directory / missing[0], repo),
        )
    return index, paths


def places_of(directory: Path, also: Sequence[Path]) -> list[Path]:
    """All directories of a checkpoint, the first the one with its config. Raises CheckpointError."""
    places = [directory]
    for place in also:
        if not os.path.isdir(place):
            what = "is not a directory" if os.path.exists(place) else "does not exist"
            raise CheckpointError(f"--also {place}: {what}", "Name a directory that holds shards.")
        for other in places:
            if os.path.samefile(place, other):
                raise CheckpointError(f"--also {place}: is the same directory as {other}", "Name it once.")
        places.append(place)
    return places


def find_file(places: Sequence[Path], name: str) -> Path | None:
    """Where a shard is, if it is anywhere. Raises ShardError when it is in two places."""
    found = [place / name for place in places if (place / name).is_file()]
    if len(found) > 1:
        sizes = " and ".join(f"{path} ({path.stat().st_size:,} bytes)" for path in found[:2])
        raise ShardError(f"{name} is there twice: {sizes}", "Remove one of them, or leave its --also out.")
    return found[0] if found else None


def in_words(places: Sequence[Path]) -> str:
    """The directories for a message."""
    return " and ".join(str(place) for place in places)


def _by_file_names(places: Sequence[Path], repo: str) -> list[Path]:
    """All shards of the directories; a numbered set must be whole."""
    names: set[str] = set()
    for place in places:
        try:
            names |= {
                path.name for path in place.iterdir() if path.suffix == ".safetensors" and path.is_file()
            }
        except OSError as error:
            raise CheckpointError(
                f"{place} cannot be listed: {error.strerror}", "Check its permissions."
            ) from None
    found = {name: path for name in names if (path := find_file(places, name)) is not None}
    if not found:
        raise ShardError(
            f"{in_words(places)} holds neither {INDEX_NAME} nor any *.safetensors file",
            "Give the directory that holds the shards of a checkpoint.",
        )
    for name in sorted(found):
        if match := _NUMBERED.fullmatch(name):
            start, digits, of, total, end = match.groups()
            for number in range(1, min(int(total), 10_000) + 1):
                sibling = f"{start}{number:0{len(digits)}d}{of}{total}{end}"
                if sibling not in found:
                    raise ShardError(
                        f"{sibling} is missing from {in_words(places)}: {name} is one of {int(total)}",
                        fetch(places[0] / sibling, repo),
                    )
    return [found[name] for name in sorted(found)]
