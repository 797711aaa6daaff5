"""Matrices as bands: 16 rows in a fixed number of bytes, with a checksum, packed losslessly where that is smaller.

Knows: how large a band is, how bands are made, checked and taken back, and their products with vectors.
Does not know: files, which matrix it is, where the bytes come from.

A matrix of bands is a run of bands of one `BandForm`, one behind the other, each 64-byte aligned if the first one is.
The last band may have fewer than 16 rows; the others are stored as rows of zeros. All products keep the arithmetic
contract of `rows`, so they have the bits of the same matrix in its plain form. docs/PACK.md has every byte.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import band_bytes
from .band_bytes import BAND_ROWS, QUAD, UNIT, UNIT_BYTES
from .band_sums import HEADER, check_piece
from .formats import WeightFormat
from .matrix import find_nonfinite, matmul, row_bytes
from .runtime import run, scratch

Floats = npt.NDArray[np.float32]

PLAIN = (WeightFormat.BF16, WeightFormat.F32, WeightFormat.F16)
"""Forms whose rows a band holds as they are."""
PIECE_BYTES = 512 * 1024
MOST_COLUMNS = 1 << 22
"""An escape's place in a quad has 24 bits."""


def _up(nbytes: int) -> int:
    return (nbytes + 63) & -64


@dataclass(frozen=True)
class BandForm:
    """What all bands of a run have in common."""

    fmt: WeightFormat
    """BF12, or the plain form the rows are stored in."""
    cols: int
    escape_room: int = 0
    """Escapes that each band has room for (a multiple of 16; 0 for a plain form)."""

    @property
    def nbytes(self) -> int:
        """Bytes of one band, a multiple of 64."""
        if self.fmt == WeightFormat.BF12:
            units = -(-self.cols // UNIT)
            return HEADER + BAND_ROWS // QUAD * units * UNIT_BYTES + _up(4 * self.escape_room)
        return HEADER + _up(BAND_ROWS * row_bytes(self.fmt, self.cols))

    @property
    def source(self) -> WeightFormat:
        """The form of the matrix that the bands hold."""
        return WeightFormat.BF16 if self.fmt == WeightFormat.BF12 else self.fmt

    def bands(self, rows: int) -> int:
        """Bands that `rows` rows take."""
        return -(-rows // BAND_ROWS)


def choose_form(fmt: WeightFormat, weight_addr: int, rows: int, cols: int) -> BandForm:
    """The smallest form for a run of `rows` stored rows (BF16, F32 or F16): BF12, or the plain one it is in.

    Reads the rows once (BF16): the room for escapes is that of the band that needs most.
    """
    plain = BandForm(fmt, cols)
    if fmt != WeightFormat.BF16 or rows == 0:
        return plain
    needs = np.zeros(plain.bands(rows), np.int64)
    arguments = [weight_addr, row_bytes(fmt, cols), rows, cols]
    arguments += [scratch(band_bytes.SCRATCH_BYTES), needs.ctypes.data]
    run(band_bytes.need_piece, np.array(arguments, np.int64), needs.size)
    packed = BandForm(WeightFormat.BF12, cols, -(-int(needs.max()) // 16) * 16)
    return packed if packed.nbytes < plain.nbytes and cols <= MOST_COLUMNS else plain


def _arguments(form: BandForm, weight: int, rows: int, bands: int, place: int | None) -> list[int]:
    arguments = [weight, row_bytes(form.source, form.cols), rows, form.cols]
    arguments += [scratch(band_bytes.SCRATCH_BYTES), bands, form.nbytes, form.escape_room]
    return [*arguments, 0 if place is None else place, 0 if place is None else 1]


def encode_bands(
    form: BandForm, weight_addr: int, rows: int, dst_addr: int, place: int | None = None
) -> None:
    """`rows` stored rows (form.source, any alignment) as bands at dst_addr, 64-byte aligned; parallel over bands.

    The bytes depend on the rows, the form and `place` alone. place: the number of the first band among all that
    might be mistaken for each other (it goes into the checksums, ascending); None binds no band to its place.
    ValueError if a band has more escapes than the form has room for.
    """
    count = form.bands(rows)
    over = np.zeros(max(1, count), np.int64)
    arguments = [*_arguments(form, weight_addr, rows, dst_addr, place), over.ctypes.data]
    piece = band_bytes.encode_piece if form.fmt == WeightFormat.BF12 else band_bytes.store_piece
    run(piece, np.array(arguments, np.int64), count)
    if over.any():
        band = int(np.flatnonzero(over)[0])
        raise ValueError(f"band {band} has {over[band]} escapes; the form has room for {form.escape_room}")


def decode_bands(form: BandForm, band_addr: int, rows: int, dst_addr: int) -> None:
    """The exact inverse of `encode_bands`: `rows` rows of form.source, one behind the other, at dst_addr."""
    arguments = [*_arguments(form, dst_addr, rows, band_addr, None), 0]
    piece = band_bytes.decode_piece if form.fmt == WeightFormat.BF12 else band_bytes.restore_piece
    run(piece, np.array(arguments, np.int64), form.bands(rows))


def check_bands(form: BandForm, band_addr: int, bands: int, place: int | None = None) -> int:
    """The number of the first band whose checksum is wrong, or -1; `place` as it was when they were made."""
    if bands <= 0:
        return -1
    at_once = max(1, PIECE_BYTES // form.nbytes)
    items = -(-bands // at_once)
    found = np.full(items, -1, np.int64)
    arguments = [band_addr, form.nbytes, bands, 0 if place is None else place, 0 if place is None else 1]
    run(check_piece, np.array([*arguments, at_once, found.ctypes.data], np.int64), items)
    bad = found[found >= 0]
    return int(bad[0]) if bad.size else -1


def _plain(form: BandForm, band_addr: int, rows: int) -> npt.NDArray[np.uint8]:
    stored = np.empty(rows * row_bytes(form.source, form.cols), np.uint8)
    decode_bands(form, band_addr, rows, stored.ctypes.data)
    return stored


def matmul_bands(form: BandForm, band_addr: int, rows: int, xs: Floats, y: Floats, col0: int = 0) -> None:
    """y[:, col0 : col0 + rows] = x @ W.T for `rows` rows of W, the first of which begins a band.

    Bit for bit what `matrix.matmul` gives for the plain rows. xs f32[T, padded(cols)] as `split_rows` leaves it.
    """
    stored = _plain(form, band_addr, rows)
    matmul(form.source, stored.ctypes.data, 0, rows, form.cols, xs, y, col0)


def find_nonfinite_bands(form: BandForm, band_addr: int, rows: int) -> tuple[int, int]:
    """(row, column) of the first weight that is not finite as float32, or (-1, -1)."""
    stored = _plain(form, band_addr, rows)
    return find_nonfinite(form.source, stored.ctypes.data, 0, rows, form.cols)
