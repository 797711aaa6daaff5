"""Products of a stored matrix with float32 vectors, over all compute threads.

Knows: which kernel serves which stored form and how many vectors, and how the rows are shared out.
Does not know: where the bytes come from or what the matrix means.

All sums follow the arithmetic contract written down in `rows`, so a result depends on the stored row and the
vector alone: not on how many vectors are multiplied at once, on threads, on how rows are cut, or on the CPU.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from . import finite, panels
from .decode import DECODERS, GROUP
from .formats import WeightFormat
from .panels import BAND
from .rows import FORMS
from .runtime import Kernel, argument, caller, kernel, run, scratch, threads

Floats = npt.NDArray[np.float32]

PIECE_BYTES = 512 * 1024
"""Most stored bytes of one piece of work: many times `rows.AHEAD`, as what is asked for past its end may be wasted."""


def padded(cols: int) -> int:
    """`cols` rounded up to a whole number of groups of 32."""
    return (cols + GROUP - 1) // GROUP * GROUP


def row_bytes(fmt: WeightFormat, cols: int) -> int:
    """Stored bytes of one row, without scales."""
    return cols * DECODERS[fmt].group_bytes // GROUP


def scale_row_bytes(fmt: WeightFormat, cols: int) -> int:
    """Bytes of scale of one row (0 where the form has none)."""
    return cols * DECODERS[fmt].scale_bytes // GROUP


def split_rows(x: Floats, out: Floats) -> None:
    """Bring vectors into the order the kernels read: out f32[T, padded(K)] from x f32[T, K].

    In each group of 32 columns the 16 even ones come first, then the 16 odd ones; columns beyond K are zero.
    """
    count, cols = x.shape
    full = cols // GROUP
    pairs = out.reshape(count, -1, 2, GROUP // 2)
    pairs[:, :full] = x[:, : full * GROUP].reshape(count, full, GROUP // 2, 2).transpose(0, 1, 3, 2)
    if full * GROUP < cols:
        last = np.zeros((count, GROUP), np.float32)
        last[:, : cols - full * GROUP] = x[:, full * GROUP :]
        pairs[:, full] = last.reshape(count, GROUP // 2, 2).transpose(0, 2, 1)


invoke_11, invoke_15 = caller(11), caller(15)


@kernel("void(int64, int64, int64)")
def product_piece(arguments, item, worker):
    """A run of rows of a product; `matmul` lists the arguments."""
    direct, most_direct, many, unpack = (
        argument(arguments, 0),
        argument(arguments, 1),
        argument(arguments, 2),
        argument(arguments, 3),
    )
    weight, row, scale, scale_row = (
        argument(arguments, 4),
        argument(arguments, 5),
        argument(arguments, 6),
        argument(arguments, 7),
    )
    rows, cols, at_once = argument(arguments, 8), argument(arguments, 9), argument(arguments, 10)
    x, x_row, vectors = argument(arguments, 11), argument(arguments, 12), argument(arguments, 13)
    y, y_row = argument(arguments, 14), argument(arguments, 15)
    r0 = item * at_once
    n = min(at_once, rows - r0)
    w, s, out = weight + r0 * row, scale + r0 * scale_row, y + r0 * 4
    if vectors <= most_direct:
        invoke_11(direct, w, s, n, cols, x, x_row, 0, vectors, out, y_row, 0)
    else:
        own = argument(arguments, 16) + worker * argument(arguments, 17)
        invoke_15(many, unpack, w, s, row, scale_row, n, cols, x, x_row, 0, vectors, out, y_row, 0, own)


def rows_of_piece(row_nbytes: int, rows: int) -> int:
    """How many rows one piece of work takes: some pieces for each thread, none too small to be worth it."""
    share = -(-rows // (8 * threads()))
    return max(BAND, min(share, PIECE_BYTES // max(1, row_nbytes)) // BAND * BAND)


def matmul(
    fmt: WeightFormat,
    weight_addr: int,
    scale_addr: int,
    rows: int,
    cols: int,
    xs: Floats,
    y: Floats,
    col0: int = 0,
) -> None:
    """y[:, col0 : col0 + rows] = x @ W.T for `rows` consecutive stored rows of W.

    weight_addr: the first row's first byte, at any alignment; nothing beyond the last row is read. scale_addr: the
    same of the scales (MXFP4 only). xs f32[T, padded(cols)]: the vectors as `split_rows` leaves them. y f32[T, N].
    """
    vectors = xs.shape[0]
    if vectors == 0 or rows == 0:
        return
    row = row_bytes(fmt, cols)
    at_once = rows_of_piece(row, rows)
    form = FORMS[fmt]
    arguments = [form.kernel.address, form.vectors, panels.many.address, panels.PANEL[fmt].address]
    arguments += [weight_addr, row, scale_addr, scale_row_bytes(fmt, cols), rows, cols, at_once]
    arguments += [xs.ctypes.data, xs.strides[0], vectors, y.ctypes.data + 4 * col0, y.strides[0]]
    arguments += [scratch(panels.SCRATCH_BYTES), panels.SCRATCH_BYTES]
    run(product_piece, np.array(arguments, np.int64), -(-rows // at_once))


def all_finite(y: Floats, col0: int = 0, col1: int | None = None) -> bool:
    """Whether y[:, col0:col1] of y f32[T, N] has neither NaN nor infinity."""
    col1 = y.shape[1] if col1 is None else col1
    if y.shape[0] == 0 or col1 <= col0:
        return True
    worst = finite.largest_bits(y.ctypes.data + 4 * col0, y.strides[0], y.shape[0], col1 - col0)
    return int(worst) < finite.INFINITE_BITS


def find_nonfinite(
    fmt: WeightFormat, weight_addr: int, scale_addr: int, rows: int, cols: int
) -> tuple[int, int]:
    """(row, column) of the first stored weight that is not finite as float32, or (-1, -1).

    With MXFP4 that is a scale byte 255, or a code beyond the range of float32 under its scale.
    """
    row, scale_row = row_bytes(fmt, cols), scale_row_bytes(fmt, cols)
    return first_nonfinite(panels.PANEL[fmt], weight_addr, scale_addr, row, scale_row, rows, cols)


def first_nonfinite(
    unpack: Kernel, weight_addr: int, scale_addr: int, row: int, scale_row: int, rows: int, cols: int
) -> tuple[int, int]:
    """`find_nonfinite` for rows that `unpack` unpacks: row r is what it finds at r times the two strides."""
    at_once = max(1, PIECE_BYTES // max(1, row, cols))
    items = -(-rows // at_once)
    found = np.full(max(1, items), -1, np.int64)
    panel_bytes = panels.PANEL_BYTES
    arguments = [unpack.address, weight_addr, scale_addr, row, scale_row, rows, cols, at_once]
    arguments += [scratch(panel_bytes), panel_bytes, found.ctypes.data]
    run(finite.search_piece, np.array(arguments, np.int64), items)
    bad = found[found >= 0]
    if bad.size == 0:
        return -1, -1
    first = int(bad[0])
    panel = np.zeros(panel_bytes // 4, np.float32)
    for g0 in range(0, padded(cols) // GROUP, panels.PANEL_GROUPS):
        groups = min(panels.PANEL_GROUPS, padded(cols) // GROUP - g0)
        unpack(
            weight_addr + first * row, scale_addr + first * scale_row, 1, cols, g0, groups, panel.ctypes.data
        )
        pairs = panel[: groups * GROUP].reshape(groups, 2, GROUP // 2).transpose(0, 2, 1).reshape(-1)
        columns = np.flatnonzero(~np.isfinite(pairs))
        if columns.size:
            return first, g0 * GROUP + int(columns[0])
    return -1, -1
