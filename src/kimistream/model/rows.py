"""Which rows a pass carries: runs of consecutive tokens of any number of sequences.

Knows: how runs lie one after another in the pass's arrays.
Does not know: why these rows were chosen (engine), or what is done with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kimistream.model.state import SequenceState

Wanted = Literal["none", "last", "all"]


@dataclass(frozen=True, slots=True)
class Run:
    """The next `len(ids)` tokens of one sequence, and which of their logits are wanted.

    ids: int32 `[n]`. A sequence may appear in one run of a pass only.
    """

    state: SequenceState
    ids: npt.NDArray[np.int32]
    logits: Wanted = "last"


@dataclass(frozen=True, slots=True)
class Placed:
    """A run and its rows `[row0, row1)` in the pass."""

    run: Run
    row0: int
    row1: int

    @property
    def state(self) -> SequenceState:
        return self.run.state

    @property
    def rows(self) -> slice:
        return slice(self.row0, self.row1)


def place(runs: list[Run]) -> list[Placed]:
    """Lay runs one after another."""
    placed, row = [], 0
    for run in runs:
        placed.append(Placed(run, row, row + len(run.ids)))
        row += len(run.ids)
    return placed


def wanted_rows(placed: list[Placed]) -> npt.NDArray[np.int64]:
    """The rows whose logits are wanted, ascending."""
    wanted: list[int] = []
    for p in placed:
        if p.run.logits == "all":
            wanted += range(p.row0, p.row1)
        elif p.run.logits == "last":
            wanted.append(p.row1 - 1)
    return np.array(wanted, np.int64)
