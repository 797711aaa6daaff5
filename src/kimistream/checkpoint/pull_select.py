"""Which files of a repository are wanted: all, the text model only, some layers, or named ones.

Knows: how the index tells what a shard holds.
Does not know: where files come from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from kimistream.checkpoint.index import INDEX_NAME
from kimistream.checkpoint.names import VISION_PREFIXES
from kimistream.checkpoint.pull_hub import RemoteFile
from kimistream.errors import DownloadError, UsageError

_LAYER = re.compile(r"(?:language_model\.)?model\.layers\.(\d+)\.")


class _WeightMap(msgspec.Struct):
    weight_map: dict[str, str]


def needs_index(only_text: bool, layers: tuple[int, int] | None) -> bool:
    """Whether the index must be there before the choice can be made."""
    return only_text or layers is not None


def choose(
    files: Sequence[RemoteFile],
    index: Path | None,
    *,
    only_text: bool = False,
    layers: tuple[int, int] | None = None,
    names: Sequence[str] = (),
) -> list[RemoteFile]:
    """The wanted ones of `files`, small ones first.

    only_text: without shards that hold nothing but the image tower. layers: first and last (from 0) layer,
    with what is outside the layers (embedding, final norm, head). names: exactly these. `index` is the
    path of the index file, needed for the first two. Raises UsageError, DownloadError.
    """
    known = {file.name: file for file in files}
    if names:
        for name in names:
            if name not in known:
                raise UsageError(
                    f"--files {name}: the repository holds no such file",
                    f"It holds {_some(sorted(known))}.",
                )
        return _ordered(known[name] for name in dict.fromkeys(names))
    if not needs_index(only_text, layers):
        return _ordered(files)
    if index is None:
        raise UsageError(
            f"--{'layers' if layers else 'only text'} needs {INDEX_NAME}, and the repository has none",
            "Fetch all of it, or name files with --files.",
        )
    shards = _shards(index)
    unwanted = set()
    highest = max((layer for held in shards.values() for layer in held[0]), default=-1)
    if layers is not None and layers[1] > highest:
        raise UsageError(
            f"--layers {layers[0]}-{layers[1]}: the model has the layers 0 to {highest}",
            f"For example --layers 0-{highest}.",
        )
    for shard, (held, text, vision) in shards.items():
        wanted = text or bool(held)
        if layers is not None:
            wanted = text or any(layers[0] <= layer <= layers[1] for layer in held)
        if not wanted and (vision or layers is not None):
            unwanted.add(shard)
        if wanted and shard not in known:
            raise DownloadError(
                f"{index.name} lists {shard}, and the repository does not hold it",
                "Ask for another --revision.",
            )
    return _ordered(file for file in files if file.name not in unwanted)


def _shards(index: Path) -> dict[str, tuple[set[int], bool, bool]]:
    """Shard -> (layers it holds parts of, whether it holds other text tensors, whether vision tensors)."""
    try:
        weight_map = msgspec.json.decode(index.read_bytes(), type=_WeightMap).weight_map
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise DownloadError(
            f"{index} is not a valid index: {error}", "Delete it and run pull again."
        ) from None
    shards: dict[str, tuple[set[int], bool, bool]] = {}
    for name, shard in weight_map.items():
        held, text, vision = shards.get(shard) or (set(), False, False)
        if match := _LAYER.match(name):
            held.add(int(match[1]))
        elif name.startswith(VISION_PREFIXES):
            vision = True
        else:
            text = True
        shards[shard] = (held, text, vision)
    return shards


def _ordered(files: Iterable[RemoteFile]) -> list[RemoteFile]:
    """Small files first: the config and the tokenizer are there early; then the shards by name."""

    return sorted(files, key=lambda file: (file.name.endswith(".safetensors"), file.name))


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
