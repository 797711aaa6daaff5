"""The arithmetic contract once more, in plain numpy: what every matrix product must give, bit for bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kimistream.kernels.formats import WeightFormat

Floats = npt.NDArray[np.float32]

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c, rounded once to float32.

    The product is exact in float64. The sum is made there rounded to odd, which a second rounding to half as many
    digits does not notice.
    """
    product, c = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    with np.errstate(all="ignore"):
        total = product + c
        back = total - product
        error = (product - (total - back)) + (c - back)
        bits = total.view(np.int64)
        inexact = (error != 0) & np.isfinite(total) & (bits & 1 == 0)
        # towards the true sum: away from zero if the error has the sign of the total
        outward = (error > 0) == (total > 0)
        bits = np.where(inexact, np.where(outward, bits + 1, bits - 1), bits)
        return bits.view(np.float64).astype(np.float32)


def dots(weights: Floats, x: Floats) -> Floats:
    """x @ weights.T under the contract: f32[T, O] from weights f32[O, K] and x f32[T, K]."""
    (count, cols), rows = x.shape, weights.shape[0]
    groups = -(-cols // 32)
    w = np.zeros((rows, groups * 32), np.float32)
    w[:, :cols] = weights
    v = np.zeros((count, groups * 32), np.float32)
    v[:, :cols] = x
    w, v = w.reshape(rows, groups, 16, 2), v.reshape(count, groups, 16, 2)
    sums = np.zeros((count, rows, 16, 2), np.float32)
    for g in range(groups):
        sums = fma(
            np.broadcast_to(w[None, :, g], sums.shape), np.broadcast_to(v[:, None, g], sums.shape), sums
        )
    with np.errstate(all="ignore"):
        lanes = sums[..., 0] + sums[..., 1]
        for half in (8, 4, 2, 1):
            lanes = lanes[..., :half] + lanes[..., half : 2 * half]
    return lanes[..., 0]


FORMS = (WeightFormat.BF16, WeightFormat.F32, WeightFormat.F16, WeightFormat.MXFP4)
"""The forms of a row on its own; BF12 exists only in bands."""


class Stored:
    """A matrix as it is stored: bytes at an odd address, with nothing of use behind them, and its float32 values."""

    def __init__(
        self, fmt: WeightFormat, values: Floats | None, shape: tuple[int, int], seed: int = 0
    ) -> None:
        """From given values (rounded to the form; not for MXFP4), or random ones."""
        rng = np.random.default_rng([seed, int(fmt), *shape])
        self.fmt, (self.rows, self.cols) = fmt, shape
        scales = np.zeros(0, np.uint8)
        if values is None:
            values = rng.standard_normal(shape).astype(np.float32)
        if fmt == WeightFormat.MXFP4:
            codes = rng.integers(0, 256, (self.rows, self.cols // 2), np.uint8)
            scale = rng.integers(97, 157, (self.rows, self.cols // 32), np.uint8)
            self.values = np.empty(shape, np.float32)
            self.values[:, 0::2], self.values[:, 1::2] = E2M1[codes & 15], E2M1[codes >> 4]
            self.values *= np.repeat(np.ldexp(np.float32(1), scale.astype(np.int32) - 127), 32, 1)
            data, scales = codes.reshape(-1), scale.reshape(-1)
        elif fmt == WeightFormat.F32:
            self.values, data = values, values.reshape(-1).view(np.uint8)
        elif fmt == WeightFormat.F16:
            with np.errstate(over="ignore"):
                half = values.astype(np.float16)
            self.values, data = half.astype(np.float32), half.reshape(-1).view(np.uint8)
        else:
            bits = values.view(np.uint32) >> 16
            self.values, data = (
                (bits << 16).view(np.float32),
                bits.astype(np.uint16).reshape(-1).view(np.uint8),
            )
        self.memory = np.full(data.size + scales.size + 2, 255, np.uint8)
        self.memory[1 : 1 + data.size] = data
        self.memory[1 + data.size : 1 + data.size + scales.size] = scales
        self.weight = self.memory.ctypes.data + 1
        self.scale = self.weight + data.size if scales.size else 0
        self.row_bytes, self.scale_bytes = data.size // self.rows, scales.size // self.rows


def columns(fmt: WeightFormat, cols: int) -> int:
    """`cols`, or with MXFP4 the next multiple of 32."""
    return -(-cols // 32) * 32 if fmt == WeightFormat.MXFP4 else cols
