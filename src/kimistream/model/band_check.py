"""Bands are looked at before they are multiplied: a damaged pack never becomes a token.

Knows: which band of the file each part of the tape begins with, and how its checksum is taken.
Does not know: when a part has to be looked at (stream.tape).
"""

from __future__ import annotations

import shlex
from pathlib import Path

from kimistream.checkpoint.pack import Pack
from kimistream.checkpoint.pack_format import BAND_ROWS
from kimistream.errors import PackError
from kimistream.kernels.bands import check_bands
from kimistream.model.order import Matrix, Run, Score
from kimistream.stream.tape import Part


class BandCheck:
    """To be given to a tape: raises PackError naming file, tensor and band for a part that is damaged."""

    def __init__(self, score: Score, pack: Pack, directory: Path) -> None:
        self._items: list[tuple[Matrix, Run]] = [
            (matrix, run) for matrix in score.matrices() for run in matrix.runs
        ]
        self._offsets = [item.offset for item in score.items]
        self._salt = pack.header.salt
        self._path = pack.path
        self._directory = directory

    def __call__(self, item: int, part: Part) -> None:
        matrix, run = self._items[item]
        assert run.form is not None
        place = self._salt + run.first_band + part.row0
        bad = check_bands(run.form, part.address, part.row1 - part.row0, place)
        if bad >= 0:
            band = part.row0 + bad
            raise damaged(self._path, self._directory, matrix, run, self._offsets[item], band)


def damaged(path: Path, directory: Path, matrix: Matrix, run: Run, offset: int, band: int) -> PackError:
    """The error for band `band` of a run that begins at byte `offset` of the pack."""
    assert run.form is not None
    row = run.row0 + band * BAND_ROWS
    last = min(row + BAND_ROWS, run.row0 + run.rows) - 1
    at = offset + band * run.form.nbytes
    pack, checkpoint = shlex.quote(str(path)), shlex.quote(str(directory))
    return PackError(
        f"{path} is damaged: tensor {matrix.name}, band {row // BAND_ROWS} (rows {row} to {last}, bytes {at:,} "
        f"to {at + run.form.nbytes:,}) is not as it was written",
        f"Look at the system log (dmesg) for errors of this drive; then delete the file and make it again: "
        f"kimistream pack {checkpoint} {pack}. Until then, run without --pack.",
    )
