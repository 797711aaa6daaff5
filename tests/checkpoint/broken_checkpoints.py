"""Copies of the small golden checkpoint with something wrong in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
TINY = DATA / "tiny-k3"
LINEAR = DATA / "kimi-linear-tiny"
INDEX = "model.safetensors.index.json"
SECOND = "model-00002-of-000007.safetensors"


def copy(source: Path, target: Path) -> Path:
    """A copy of a checkpoint made of links; write to a file of it only by the functions below."""
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).symlink_to(path)
    return target


def rewrite(path: Path, data: bytes) -> None:
    """Replace a file of a copy, without touching the file it was shared with."""
    path.unlink()
    path.write_bytes(data)


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    """Load, change in place, write."""
    tree = json.loads(path.read_bytes())
    change(tree)
    rewrite(path, json.dumps(tree).encode())


def split(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and data of a shard."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def join(header: Any, data: bytes) -> bytes:
    """A shard's bytes. `header` may be bytes, to be taken as they are."""
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + data


def edit_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the header of a shard and leave its data."""
    header, data = split(path)
    change(header)
    rewrite(path, join(header, data))


def repack(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    """Write a valid shard that holds exactly these tensors."""
    header: dict[str, Any] = {}
    pieces: list[bytes] = []
    end = 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(raw)]}
        pieces.append(raw)
        end += len(raw)
    if path.exists():
        path.unlink()
    path.write_bytes(join(header, b"".join(pieces)))


def unpack(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """All tensors of a shard, for `repack`."""
    header, data = split(path)
    header.pop("__metadata__", None)
    result = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        result[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return result
