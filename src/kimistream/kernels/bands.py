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

from . import band_bytes, panels
from .band_bytes import BAND_ROWS, QUAD, UNIT, UNIT_BYTES
from .band_panels import decode_piece, packed_panel, packed_row, plain_panel
from .band_rows import DECODED_BYTES, MOST_VECTORS, few_piece, packed_direct
from .band_sums import HEADER, check_piece
from .decode import DECODERS
from .formats import WeightFormat
from .matrix import first_nonfinite, product_piece, row_bytes, rows_of_piece
from .rows import FORMS
from .runtime import Kernel, run, scratch, threads

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
    words = -(-form.cols // UNIT) * UNIT * 2
    arguments = [*_arguments(form, dst_addr, rows, band_addr, None), 0, words]
    piece = decode_piece if form.fmt == WeightFormat.BF12 else band_bytes.restore_piece
    arguments[4] = scratch(words)
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


def described(form: BandForm, band_addr: int) -> npt.NDArray[np.int64]:
    """A run of bands for `band_panels`: address, bytes of a band, a line, a group; kernel that unpacks, if packed."""
    if form.fmt == WeightFormat.BF12:
        quad_bytes = -(-form.cols // UNIT) * UNIT_BYTES
        return np.array([band_addr, form.nbytes, quad_bytes, 64, packed_row.address, 1], np.int64)
    group_bytes, unpack = DECODERS[form.fmt].group_bytes, panels.PANEL[form.fmt].address
    return np.array(
        [band_addr, form.nbytes, row_bytes(form.fmt, form.cols), group_bytes, unpack, 0], np.int64
    )


def _panel(form: BandForm) -> Kernel:
    return packed_panel if form.fmt == WeightFormat.BF12 else plain_panel


def matmul_bands(form: BandForm, band_addr: int, rows: int, xs: Floats, y: Floats, col0: int = 0) -> None:
    """y[:, col0 : col0 + rows] = x @ W.T for `rows` rows of W, the first of which begins a band.

    Bit for bit what `matrix.matmul` gives for the plain rows. xs f32[T, padded(cols)] as `split_rows` leaves it. The
    bands must have been checked: damaged ones can lead reads astray.
    """
    vectors, cols = xs.shape[0], form.cols
    if vectors == 0 or rows == 0:
        return
    packed = form.fmt == WeightFormat.BF12
    product = [xs.ctypes.data, xs.strides[0], vectors, y.ctypes.data + 4 * col0, y.strides[0]]
    if vectors <= (MOST_VECTORS if packed else FORMS[form.fmt].vectors):
        direct = packed_direct if packed else FORMS[form.fmt].kernel
        count = form.bands(rows)
        at_once = max(1, min(-(-count // (8 * threads())), PIECE_BYTES // form.nbytes))
        arguments = [direct.address, int(packed), band_addr, form.nbytes, rows, cols, at_once]
        arguments += [*product, scratch(DECODED_BYTES), DECODED_BYTES]
        run(few_piece, np.array(arguments, np.int64), -(-count // at_once))
        return
    description = described(form, band_addr)
    at_once = rows_of_piece(form.nbytes // BAND_ROWS, rows)
    arguments = [0, 0, panels.many.address, _panel(form).address, description.ctypes.data, 0, 0, 1]
    arguments += [rows, cols, at_once, *product, scratch(panels.SCRATCH_BYTES), panels.SCRATCH_BYTES]
    run(product_piece, np.array(arguments, np.int64), -(-rows // at_once))


def find_nonfinite_bands(form: BandForm, band_addr: int, rows: int) -> tuple[int, int]:
    """(row, column) of the first weight that is not finite as float32, or (-1, -1), of checked bands."""
    description = described(form, band_addr)
    return first_nonfinite(_panel(form), description.ctypes.data, 0, 0, 1, rows, form.cols)
