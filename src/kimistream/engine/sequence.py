"""A sequence that goes on over several turns: its tokens, its state, and the snapshots it can go back to.

Knows: which of the tokens went through the model, and how much of a new list of ids need not be computed.
Does not know: text, or why the ids changed.

A state moves forward only. To go back, a snapshot taken earlier is set in; where there is none, the sequence
begins again. What is computed anew has the same bits as before, so nothing but time depends on it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.table import Checkpoint
from kimistream.engine.records import TokenRecord
from kimistream.engine.session import Session, Snapshot, common_prefix, rewind
from kimistream.engine.session_file import StoredSession, save_session
from kimistream.model.state import SequenceState

Ints = npt.NDArray[np.int32]


class LiveSequence:
    """A state, the ids that made it, and up to `most` snapshots of earlier positions.

    The memory of the snapshots is planned with `Model.open(..., snapshots=most)`.
    """

    def __init__(self, state: SequenceState, most: int = 0) -> None:
        self.state = state
        self.snapshots: list[Snapshot] = []
        self.most = most
        self._tokens: list[int] = []  # those behind the state's position have not gone through the model
        self._void = False

    @property
    def ids(self) -> list[int]:
        """The tokens that went through the model; none while the state is void."""
        return [] if self._void else self._tokens[: self.state.position]

    @property
    def pending(self) -> list[int]:
        """Tokens that are known but did not go through the model (again) yet."""
        return [] if self._void else self._tokens[self.state.position :]

    def prepare(self, ids: Sequence[int]) -> int:
        """Set the state to the longest exact prefix of `ids` within reach; its length.

        At least one token is left to compute, because that gives the logits behind it.
        """
        common = common_prefix(self._tokens, ids)
        self.snapshots = [s for s in self.snapshots if s.position <= common]
        limit = min(common, len(ids) - 1)
        if self._void or self.state.position > limit:
            self._go_back(limit)
        self._tokens = list(ids)
        return self.state.position

    def follow(self, records: Iterator[TokenRecord], *, mark: bool = False) -> Generator[TokenRecord]:
        """Pass on the tokens that are generated behind the prepared ids, keeping account of them.

        mark: take a snapshot behind the prompt. An exception in the middle of a pass leaves the state void:
        the next `prepare` goes back to a snapshot.
        """
        while True:
            self._void = True
            record = next(records, None)
            self._void = False
            if record is None:
                return
            self._tokens.append(record.id)
            if mark:
                self.mark()
                mark = False
            yield record

    def mark(self) -> None:
        """Make the present position one that can be gone back to; the oldest snapshot gives way."""
        position = self.state.position
        if not self.most or not position or any(s.position == position for s in self.snapshots):
            return
        if len(self.snapshots) < self.most:
            self.snapshots.append(Snapshot.of(self.state))
            return
        old = self.snapshots.pop(0)
        np.copyto(old.kda, self.state.kda)
        np.copyto(old.tails, self.state.tails)
        self.snapshots.append(Snapshot(position, old.kda, old.tails))

    def settle(self) -> None:
        """Set a void state back to the last snapshot; the tokens behind it are then pending."""
        if self._void:
            self._go_back(len(self._tokens))

    def save(self, path: str | Path, checkpoint: Checkpoint, note: bytes = b"") -> int:
        """Write the sequence to a session file, with `note` beside it; the file's bytes.

        A void state is set back to the last snapshot first.
        """
        self.settle()
        return save_session(path, Session.of(self.state, self.ids, self.snapshots, note), checkpoint)

    def restore(self, stored: StoredSession) -> None:
        """Take up a session file where it was left. Raises SessionError; the sequence is then empty."""
        self._tokens, self.snapshots, self._void = [], [], True
        self.snapshots = stored.restore(self.state, self.most)
        self._tokens, self._void = stored.ids.tolist(), False

    def _go_back(self, limit: int) -> None:
        """The latest snapshot at most at `limit`, or the beginning."""
        usable = [s for s in self.snapshots if s.position <= limit]
        if usable:
            rewind(self.state, usable[-1])
        else:
            self.state.reset()
        self._void = False
