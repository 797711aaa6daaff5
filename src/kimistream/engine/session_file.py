"""The file of a session: safetensors with checksums, whole or not there, and only for its own checkpoint.

Knows: the file's tensors and metadata, and how each kind of damage is told.
Does not know: what a session is used for (session).

The tensors are `ids` I32 `[n]`, `latents` F32, for each saved position p `kda.p` and `tails.p`, F32, and
`note` U8, which belongs to whoever saved. The metadata holds the format, the checkpoint's identity, the
positions, and a sha256 of every tensor. It is written piece by piece, and read piece by piece into the state it
is for, because a copy of a large state in memory could break the budget.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from kimistream.budget import format_size
from kimistream.checkpoint.config import ModelConfig
from kimistream.checkpoint.header import read_header
from kimistream.checkpoint.table import Checkpoint
from kimistream.engine.session import Session, Snapshot
from kimistream.errors import OutputError, ReadError, SessionError, ShardError
from kimistream.model.state import SequenceState, state_shapes

FORMAT = "kimistream-session-1"
_PIECE = 16 << 20
AGAIN = "Start without this session: its history can be computed again from the text."

_DTYPES: dict[str, type[np.generic]] = {"I32": np.int32, "F32": np.float32, "U8": np.uint8}

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
        dtype = next(name for name, known in _DTYPES.items() if array.dtype == known)
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
    except BaseException:  # an interrupt: nothing half-written stays
        partial.unlink(missing_ok=True)
        raise
    return offset + len(text) + 8


def load_session(path: str | Path, checkpoint: Checkpoint) -> Session:
    """Read a session back into arrays of its own, every byte checked.

    Raises SessionError for a file that is damaged, cut short, not a session, or of another checkpoint.
    """
    stored = open_session(path, checkpoint)
    count, positions = len(stored.ids), stored.positions
    shapes = state_shapes(checkpoint.config, count)
    arrays = {"latents": np.empty(shapes["latents"], np.float32)}
    for p in positions:
        arrays |= {f"{kind}.{p}": np.empty(shapes[kind], np.float32) for kind in ("kda", "tails")}
    stored.read({name: [_bytes(array)] for name, array in arrays.items()})
    snapshots = [Snapshot(p, arrays[f"kda.{p}"], arrays[f"tails.{p}"]) for p in positions]
    return Session(stored.ids, arrays["latents"], snapshots, stored.note)


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session file whose identity, shapes, ids and note are checked, and whose state is still on disk."""

    path: Path
    ids: npt.NDArray[np.int32]
    note: bytes
    positions: tuple[int, ...]
    nbytes: int
    config: ModelConfig

    def restore(self, state: SequenceState, most: int = 0) -> list[Snapshot]:
        """Set `state` to the last position; the snapshots before it, the latest `most` of them.

        Raises SessionError for damage, and UsageError when the state has no room; it is then empty.
        """
        state.reset()
        if not self.positions:
            return []
        state.room_for(len(self.ids))
        shapes = state_shapes(self.config, 0)
        earlier, last = self.positions[:-1], self.positions[-1]
        snapshots = [
            Snapshot(p, np.empty(shapes["kda"], np.float32), np.empty(shapes["tails"], np.float32))
            for p in earlier[max(0, len(earlier) - most) :]
        ]
        targets = {
            "latents": [_bytes(layer[: len(self.ids)]) for layer in state.latents],
            f"kda.{last}": [_bytes(state.kda)],
            f"tails.{last}": [_bytes(state.tails)],
        }
        for s in snapshots:
            targets |= {f"kda.{s.position}": [_bytes(s.kda)], f"tails.{s.position}": [_bytes(s.tails)]}
        try:
            self.read(targets)
        except SessionError:
            state.reset()
            raise
        state.position = last
        return snapshots

    def read(self, targets: Mapping[str, list[memoryview]]) -> None:
        """Read all tensors, those named into memory of theirs, and check every byte. Raises SessionError."""
        try:
            _read(self.path, targets)
        except (ShardError, ReadError, ValueError, OSError, msgspec.MsgspecError) as error:
            raise _damaged(self.path, error) from None


def open_session(path: str | Path, checkpoint: Checkpoint) -> StoredSession:
    """Check that a file is a session of this checkpoint, and read its ids and its note.

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
            "Use it with the checkpoint it was saved from. " + AGAIN,
        )
    try:
        header = read_header(path)
        shapes = {name: (entry.dtype, entry.shape) for name, entry, _, _ in header}
        positions = tuple(int(word) for word in metadata.positions.split(",") if word)
        _check_shapes(shapes, positions, checkpoint.config)
        small = {name: np.empty(shapes[name][1], _DTYPES[shapes[name][0]]) for name in ("ids", "note")}
        _read(path, {name: [_bytes(array)] for name, array in small.items()}, only=frozenset(small))
    except (ShardError, ReadError, ValueError, OSError, msgspec.MsgspecError) as error:
        raise _damaged(path, error) from None
    ids = small["ids"].astype(np.int32, copy=False)
    return StoredSession(path, ids, small["note"].tobytes(), positions, header.size, checkpoint.config)


def _damaged(path: Path, error: Exception) -> SessionError:
    what = error.what if isinstance(error, ShardError | ReadError) else f"session {path}: {error}"
    return SessionError(what, AGAIN)


def _tensors(session: Session) -> Iterator[tuple[str, Array]]:
    yield "ids", np.ascontiguousarray(session.ids, "<i4")
    yield "note", np.frombuffer(session.note, np.uint8)
    yield "latents", session.latents
    for snapshot in session.snapshots:
        yield f"kda.{snapshot.position}", snapshot.kda
        yield f"tails.{snapshot.position}", snapshot.tails


def _pieces(array: Array) -> Iterator[memoryview]:
    """The array's bytes in order, without a copy of the whole (latents are a slice of a larger array)."""
    for part in array if array.ndim > 1 else [array]:
        flat = np.ascontiguousarray(part).data.cast("B") if part.size else memoryview(b"")
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
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SessionError(f"session {path} is damaged: its header is not valid ({error})", AGAIN) from None


def _read(path: Path, targets: Mapping[str, list[memoryview]], only: frozenset[str] | None = None) -> None:
    """Read tensors (all, or only some) and check them; those with targets fill these, in order."""
    metadata = _metadata(path)
    sums = msgspec.json.decode(metadata.sums.encode(), type=dict[str, str])
    scratch = memoryview(bytearray(_PIECE))
    seen = set()
    with path.open("rb") as file:
        for name, _, offset, nbytes in read_header(path):
            if only is not None and name not in only:
                continue
            seen.add(name)
            file.seek(offset)
            digest = hashlib.sha256()
            for piece in _places(targets.get(name), nbytes, scratch):
                if file.readinto(piece) != len(piece):
                    raise ValueError(f"{name} ends early")
                digest.update(piece)
            if digest.hexdigest() != sums.get(name):
                raise ValueError(f"{name} is damaged: its checksum does not hold")
    missing = (sums.keys() if only is None else only) - seen
    if missing:
        raise ValueError(f"{sorted(missing)[0]} is missing")


def _places(views: list[memoryview] | None, nbytes: int, scratch: memoryview) -> Iterator[memoryview]:
    """Where to read the next bytes to, a piece at a time; bytes nobody wants go to `scratch`."""
    if views is None:
        for at in range(0, nbytes, len(scratch)):
            yield scratch[: min(len(scratch), nbytes - at)]
        return
    if sum(len(view) for view in views) != nbytes:
        raise ValueError(f"{nbytes} bytes do not fit")
    for view in views:
        for at in range(0, len(view), _PIECE):
            yield view[at : at + _PIECE]


def _check_shapes(
    found: Mapping[str, tuple[str, tuple[int, ...]]], positions: tuple[int, ...], config: ModelConfig
) -> None:
    """Hold the tensors' types and shapes against those this checkpoint gives them."""
    latents = found.get("latents", ("", ()))[1]
    count = latents[1] if len(latents) == 3 else -1
    shapes = state_shapes(config, count)
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {
        "latents": ("F32", shapes["latents"]),
        "ids": ("I32", (count,)),
        "note": ("U8", found.get("note", ("", (0,)))[1][:1]),
    }
    for p in positions:
        wanted |= {f"{kind}.{p}": ("F32", shapes[kind]) for kind in ("kda", "tails")}
    for name, kind in wanted.items():
        if found.get(name) != kind:
            raise ValueError(f"{name} is {found.get(name)}, this checkpoint needs {kind}")
    last = positions[-1] if positions else 0
    if list(positions) != sorted(set(positions)) or last > count or (positions and positions[0] < 1):
        raise ValueError(f"its positions {list(positions)} do not fit {count} tokens")
    if not positions and count:
        raise ValueError(f"it has {count} tokens and no position")


def _bytes(array: Array) -> memoryview:
    """A contiguous array's memory."""
    return array.reshape(-1).view(np.uint8).data
