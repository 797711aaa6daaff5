"""The file of a session: safetensors with checksums, whole or not there, and only for its own checkpoint.

Knows: the file's tensors and metadata, and how each kind of damage is told.
Does not know: what a session is used for (session).

The tensors are `ids` I32 `[n]`, `latents` F32, and for each saved position p `kda.p` and `tails.p`, F32. The
metadata holds the format, the checkpoint's identity, the positions, and a sha256 of every tensor. It is
written piece by piece, because a copy of a large state in memory could break the budget.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from kimistream.budget import format_size
from kimistream.checkpoint.header import read_header
from kimistream.checkpoint.table import Checkpoint
from kimistream.engine.session import Session, Snapshot
from kimistream.errors import OutputError, ReadError, SessionError, ShardError
from kimistream.model.state import state_shapes

FORMAT = "kimistream-session-1"
_PIECE = 16 << 20
_AGAIN = "Start without this session: its history can be computed again from the text."

Array = npt.NDArray[np.generic]


class Metadata(msgspec.Struct):
    """What a session file says of itself. `sums` is a JSON object: tensor name -> sha256 in hex."""

    format: str = ""
    checkpoint: str = ""
    positions: str = ""
    sums: str = ""


class _Header(msgspec.Struct):
    metadata: Metadata | None = msgspec.field(name="__metadata__", default=None)


def save_session(path: str | Path, session: Session, checkpoint: Checkpoint) -> int:
    """Write a session; the file's bytes. It appears whole under its name, or an older one stays.

    Raises OutputError naming the path when it cannot be written.
    """
    path = Path(path)
    tensors = dict(_tensors(session))
    sums = {name: _digest(array) for name, array in tensors.items()}
    header: dict[str, object] = {
        "__metadata__": {
            "format": FORMAT,
            "checkpoint": checkpoint.identity,
            "positions": ",".join(str(s.position) for s in session.snapshots),
            "sums": msgspec.json.encode(sums).decode(),
        }
    }
    offset = 0
    for name, array in tensors.items():
        dtype = "I32" if array.dtype == np.int32 else "F32"
        end = offset + array.nbytes
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for array in tensors.values():
                for piece in _pieces(array):
                    file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OutputError(
            f"session {path} ({format_size(offset)}) cannot be written: {error.strerror}",
            "Name a file in a directory that exists, that you may write to, and that has room.",
        ) from None
    return offset + len(text) + 8


def load_session(path: str | Path, checkpoint: Checkpoint) -> Session:
    """Read a session back, every byte checked.

    Raises SessionError for a file that is damaged, cut short, not a session, or of another checkpoint.
    """
    path = Path(path)
    metadata = _metadata(path)
    if metadata.format != FORMAT:
        what = f"session {path} has the format {metadata.format or 'of no session'!r}, known is {FORMAT!r}"
        raise SessionError(what, "It was written by another program or another version.")
    if metadata.checkpoint != checkpoint.identity:
        raise SessionError(
            f"session {path} belongs to another checkpoint (identity {metadata.checkpoint[:12]}, "
            f"{checkpoint.directory} has {checkpoint.identity[:12]})",
            "Use it with the checkpoint it was saved from; " + _AGAIN[0].lower() + _AGAIN[1:],
        )
    try:
        tensors = _read(path, metadata)
        positions = [int(word) for word in metadata.positions.split(",")]
    except (ShardError, ReadError, ValueError, msgspec.MsgspecError) as error:
        what = error.what if isinstance(error, ShardError | ReadError) else f"session {path}: {error}"
        raise SessionError(what, _AGAIN) from None
    return _assemble(path, tensors, positions, checkpoint)


def _tensors(session: Session) -> Iterator[tuple[str, Array]]:
    yield "ids", np.ascontiguousarray(session.ids, "<i4")
    yield "latents", session.latents
    for snapshot in session.snapshots:
        yield f"kda.{snapshot.position}", snapshot.kda
        yield f"tails.{snapshot.position}", snapshot.tails


def _pieces(array: Array) -> Iterator[memoryview]:
    """The array's bytes in order, without a copy of the whole (latents are a slice of a larger array)."""
    for part in array if array.ndim > 1 else [array]:
        flat = memoryview(np.ascontiguousarray(part)).cast("B") if part.size else memoryview(b"")
        for at in range(0, len(flat), _PIECE):
            yield flat[at : at + _PIECE]


def _digest(array: Array) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(array):
        digest.update(piece)
    return digest.hexdigest()


def _metadata(path: Path) -> Metadata:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > 1 << 20:
                raise SessionError(
                    f"{path} is not a session of kimistream", "Name a file that --session wrote."
                )
            return msgspec.json.decode(file.read(length), type=_Header).metadata or Metadata()
    except OSError as error:
        raise SessionError(f"session {path} cannot be read: {error.strerror}", "Check its path.") from None
    except msgspec.MsgspecError as error:
        raise SessionError(f"session {path} is damaged: its header is not valid ({error})", _AGAIN) from None


def _read(path: Path, metadata: Metadata) -> dict[str, Array]:
    header = read_header(path)
    sums = msgspec.json.decode(metadata.sums.encode(), type=dict[str, str])
    tensors: dict[str, Array] = {}
    with path.open("rb") as file:
        for name, entry, offset, nbytes in header:
            dtype = np.int32 if entry.dtype == "I32" else np.float32
            array: Array = np.empty(entry.shape, dtype)
            flat = memoryview(array.reshape(-1).view(np.uint8))
            file.seek(offset)
            done = 0
            while done < nbytes:
                got = file.readinto(flat[done : done + _PIECE])
                if not got:
                    raise ValueError(f"{name} ends early")
                done += got
            if _digest(array) != sums.get(name):
                raise ValueError(f"{name} is damaged: its checksum does not hold")
            tensors[name] = array
    missing = sums.keys() - tensors.keys()
    if missing:
        raise ValueError(f"{sorted(missing)[0]} is missing")
    return tensors


def _assemble(path: Path, tensors: dict[str, Array], positions: list[int], checkpoint: Checkpoint) -> Session:
    """Hold the arrays against the shapes this checkpoint gives them."""
    latents = tensors.get("latents", np.empty(0))
    ids = tensors.get("ids", np.empty(0))
    count = latents.shape[1] if latents.ndim == 3 else -1
    shapes = state_shapes(checkpoint.config, count)
    wanted = {"latents": shapes["latents"], "ids": (count,)}
    for position in positions:
        wanted |= {f"kda.{position}": shapes["kda"], f"tails.{position}": shapes["tails"]}
    for name, shape in wanted.items():
        found = tensors[name].shape if name in tensors else None
        if found != shape:
            raise SessionError(
                f"session {path}: {name} has the shape {found}, this checkpoint needs {shape}", _AGAIN
            )
    if positions != sorted(set(positions)) or not positions or not 0 < positions[-1] <= count:
        raise SessionError(f"session {path}: its positions {positions} do not fit {count} tokens", _AGAIN)
    snapshots = [Snapshot(p, _floats(tensors[f"kda.{p}"]), _floats(tensors[f"tails.{p}"])) for p in positions]
    return Session(ids.astype(np.int32, copy=False), _floats(latents), snapshots)


def _floats(array: Array) -> npt.NDArray[np.float32]:
    return np.asarray(array, np.float32)
