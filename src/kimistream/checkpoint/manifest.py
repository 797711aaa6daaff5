"""The manifest: which files a checkpoint directory should hold, each with its size and sha256.

Knows: the file's form, and how it is read and written.
Does not know: where the digests come from (pull has them from the hub, verify from the disk).

`kimistream-manifest.json` lies beside the shards, so that a copy of the directory carries it along:

    {"format": 1, "source": "hub", "repo": "moonshotai/Kimi-K3", "revision": "<commit>",
     "files": {"config.json": {"size": 5990, "sha256": "<64 hex digits>"}, ...}}

`source` "hub" means that every digest was compared with what the hub publishes; "local", that it was taken
from the files as they were (which proves that they have not changed since, not that they were right).
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from kimistream.checkpoint.whole import write_whole
from kimistream.errors import CheckpointError

MANIFEST_NAME = "kimistream-manifest.json"
FORMAT = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ManifestFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one file must be: bytes, and sha256 in lower-case hex.

    `marks`, for shards (base64 in the file): digests on the way, which name the tensor of a wrong byte (see
    digest).
    """

    size: int
    sha256: str
    marks: bytes = b""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All files, by their name relative to the directory."""

    source: Literal["hub", "local"]
    files: dict[str, ManifestFile]
    repo: str | None = None
    revision: str | None = None
    format: int = FORMAT


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a checkpoint directory, or None when it has none. Raises CheckpointError."""
    path = directory / MANIFEST_NAME
    remedy = f"Delete it; `kimistream verify {directory} --write-manifest` makes a new one."
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}", "Check its permissions.") from None
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a valid manifest: {error}", remedy) from None
    if manifest.format != FORMAT:
        raise CheckpointError(
            f"{path} has format {manifest.format}; understood: {FORMAT}",
            "Use a newer kimistream, or: " + remedy,
        )
    for name, entry in manifest.files.items():
        if not is_inside(name) or entry.size < 0 or not _SHA256.fullmatch(entry.sha256):
            raise CheckpointError(
                f"{path}: the entry {name!r} has {entry.size} bytes and sha256 {entry.sha256[:70]!r}; needed: a name "
                "inside the directory, a size of 0 or more, 64 hex digits",
                remedy,
            )
    return manifest


def write_manifest(directory: Path, manifest: Manifest) -> Path:
    """Put the manifest into the directory, whole or not at all. Raises OutputError."""
    ordered = msgspec.structs.replace(manifest, files=dict(sorted(manifest.files.items())))
    path = directory / MANIFEST_NAME
    write_whole(path, msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")
    return path


def is_inside(name: str) -> bool:
    """Whether a file name from elsewhere stays inside the directory it is joined to."""
    path = PurePosixPath(name)
    return (
        bool(name)
        and not path.is_absolute()
        and "\\" not in name
        and "\0" not in name
        and all(len(part.encode("utf-8", "surrogatepass")) <= 255 for part in path.parts)
        and name == str(path)
        and all(part not in ("..", ".", "") for part in path.parts)
    )
