"""A sequence put away and taken up again: its ids, and its state at one or more positions.

Knows: which saved position serves a new list of ids, and how a state is set back to it.
Does not know: the file (session_file), or what the ids mean.

KDA states are recurrent: they can be had only at the positions where they were saved. MLA latents are one
per position, so those of the last saved position serve all earlier ones too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.config import ModelConfig
from kimistream.model.state import SequenceState, state_shapes

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The recurrent part of a state after `position` tokens; shapes as in SequenceState."""

    position: int
    kda: Floats
    tails: Floats

    @classmethod
    def of(cls, state: SequenceState) -> Snapshot:
        """A copy of a state as it is now."""
        return cls(state.position, state.kda.copy(), state.tails.copy())

    @property
    def nbytes(self) -> int:
        return self.kda.nbytes + self.tails.nbytes


def snapshot_bytes(config: ModelConfig) -> int:
    """Bytes of one snapshot."""
    shapes = state_shapes(config, 0)
    return 4 * (int(np.prod(shapes["kda"])) + int(np.prod(shapes["tails"])))


@dataclass(slots=True)
class Session:
    """Ids int32 `[n]`, snapshots at ascending positions, latents float32 `[mla layers, m, width]` with m at
    least the last snapshot's position; and a note, bytes that mean something to whoever saves them."""

    ids: Ints
    latents: Floats
    snapshots: list[Snapshot] = field(default_factory=list)
    note: bytes = b""

    @classmethod
    def of(
        cls,
        state: SequenceState,
        ids: Sequence[int] | Ints,
        snapshots: Sequence[Snapshot] = (),
        note: bytes = b"",
    ) -> Session:
        """What there is to save of a sequence: its state now, and earlier snapshots.

        ids: the tokens that went through the model, `state.position` of them. An empty sequence has no
        snapshot at all.
        """
        kept = sorted((s for s in snapshots if s.position < state.position), key=lambda s: s.position)
        now = [Snapshot(state.position, state.kda, state.tails)] if state.position else []
        tokens = np.asarray(ids, np.int32)[: state.position]
        return cls(tokens, state.latents[:, : state.position], kept + now, note)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.ids.nbytes + self.latents.nbytes + sum(s.nbytes for s in self.snapshots) + len(self.note)

    def best(self, ids: Sequence[int] | Ints) -> Snapshot | None:
        """The snapshot at the longest exact prefix of `ids` that leaves at least one token to compute."""
        limit = min(common_prefix(self.ids, ids), len(ids) - 1)
        usable = [s for s in self.snapshots if s.position <= limit]
        return max(usable, key=lambda s: s.position) if usable else None

    def restore(self, state: SequenceState, ids: Sequence[int] | Ints) -> int:
        """Set `state` to the longest saved exact prefix of `ids`; how many tokens need not be computed."""
        snapshot = self.best(ids)
        if snapshot is None:
            state.reset()
            return 0
        state.room_for(len(ids) - state.position)
        rewind(state, snapshot)
        state.latents[:, : snapshot.position] = self.latents[:, : snapshot.position]
        return snapshot.position


def common_prefix(known: Sequence[int] | Ints, wanted: Sequence[int] | Ints) -> int:
    """How many ids at the beginning are the same."""
    n = min(len(known), len(wanted))
    differs = np.flatnonzero(np.asarray(known[:n], np.int64) != np.asarray(wanted[:n], np.int64))
    return int(differs[0]) if len(differs) else n


def rewind(state: SequenceState, snapshot: Snapshot) -> None:
    """Set a state back to one of its own earlier snapshots; its latents up to there are still in place."""
    np.copyto(state.kda, snapshot.kda)
    np.copyto(state.tails, snapshot.tails)
    state.position = snapshot.position
