"""Products straight from packed bands beside the same matrix in bfloat16, in turn in one run; medians of the pairs.

    python benchmarks/bands.py [--threads 2] [--pairs 9] [--quick]

One vector is bound by memory, whose read rate stands beside it; many by float32 FMAs. The weights rotate over more than
1 GB in each form, so no cache holds them. Making, checking and taking back bands are measured as bytes of bfloat16 (of
bands for the check) per second and core. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kimistream.kernels import runtime
from kimistream.kernels.bands import (
    BandForm,
    check_bands,
    choose_form,
    decode_bands,
    encode_bands,
    matmul_bands,
)
from kimistream.kernels.formats import WeightFormat
from kimistream.kernels.matrix import matmul, padded
from limits import PIECE, fma_rate, kernel_options, read_seconds

ROWS, COLS, COPIES = 12288, 7168, 9
TARGETS = {1: 1.20, 2: 1.20, 16: 0.90, 128: 0.90}
"""Weights per second of the packed kernel over those of the bfloat16 one, by vectors."""
MAKE, CHECK = 0.3e9, 8e9
"""Bytes per second and core for choosing a form and making bands, and for checking them."""


class Both:
    """Copies of one matrix of normally distributed weights in bfloat16 and in bands."""

    def __init__(self) -> None:
        values = np.random.default_rng(0).standard_normal((ROWS, COLS), np.float32) * np.float32(0.02)
        words = (values.view(np.uint32) >> 16).astype(np.uint16)
        del values
        self.form: BandForm = choose_form(WeightFormat.BF16, words.ctypes.data, ROWS, COLS)
        self.count = self.form.bands(ROWS)
        self.one = self.count * self.form.nbytes
        self.plain: npt.NDArray[np.uint16] = np.empty((COPIES, ROWS, COLS), np.uint16)
        self.plain[:] = words
        self.memory: npt.NDArray[np.uint8] = np.zeros(-(-(COPIES * self.one + 64) // PIECE) * PIECE, np.uint8)
        self.start = -self.memory.ctypes.data % 64
        for k in range(COPIES):
            encode_bands(self.form, words.ctypes.data, ROWS, self.band(k))

    def band(self, k: int) -> int:
        """The address of copy k's bands."""
        return self.memory.ctypes.data + self.start + k * self.one


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def products(both: Both, vectors: int, pairs: int) -> bool:
    """Print a line for `vectors` vectors; whether its target is met."""
    xs = np.random.default_rng(1).standard_normal((vectors, padded(COLS))).astype(np.float32)
    want, got = np.empty((2, vectors, ROWS), np.float32)
    weights = ROWS * COLS
    turns = max(1, min(COPIES, int(2e10 / (2 * weights * vectors))))

    def plain() -> None:
        for k in range(turns):
            matmul(WeightFormat.BF16, both.plain[k].ctypes.data, 0, ROWS, COLS, xs, want)

    def packed() -> None:
        for k in range(turns):
            matmul_bands(both.form, both.band(k), ROWS, xs, got)

    plain(), packed()
    assert want.tobytes() == got.tobytes()
    made = np.array(
        [
            (
                timed(plain),
                timed(packed),
                both.memory.nbytes / read_seconds(both.memory) if vectors == 1 else fma_rate(),
            )
            for _ in range(pairs)
        ]
    )
    ratio = float(np.median(made[:, 0] / made[:, 1]))
    first, second, limit = np.median(made, axis=0)
    target = TARGETS.get(vectors)
    met = target is None or ratio >= target
    line = f"{vectors:>4} vectors: bf16 {turns * weights / first / 1e9:5.1f}, packed "
    line += f"{turns * weights / second / 1e9:5.1f} G weights/s, ratio {ratio:.2f}"
    if vectors == 1:
        rates = (n * turns / seconds / 1e9 for n, seconds in ((2 * weights, first), (both.one, second)))
        line += " ({:.1f} and {:.1f} of {:.1f} GB/s)".format(*rates, limit / 1e9)
    else:
        rates = (2 * weights * vectors * turns / seconds / 1e9 for seconds in (first, second))
        line += " ({:.0f} and {:.0f} of {:.0f} GFLOP/s)".format(*rates, limit / 1e9)
    wanted = "" if target is None else f", wanted {target:.2f}: {'met' if met else 'MISSED'}"
    print(line + wanted, flush=True)
    return met


def bytes_per_core(name: str, work: Callable[[], object], nbytes: int, target: float | None) -> bool:
    """Print the rate of `work` per thread; whether the target is met."""
    work()
    rate = float(np.median([nbytes / timed(work) for _ in range(5)])) / runtime.threads()
    met = target is None or rate >= target
    wanted = "" if target is None else f", wanted {target / 1e9:.1f}: {'met' if met else 'MISSED'}"
    print(f"{name}: {rate / 1e9:.2f} GB/s per core{wanted}", flush=True)
    return met


def making(both: Both) -> bool:
    """Forms chosen, bands made, checked and taken back."""
    source, size = both.plain[0].ctypes.data, both.plain[0].nbytes
    back = np.empty((ROWS, COLS), np.uint16)

    def make() -> None:
        form = choose_form(WeightFormat.BF16, source, ROWS, COLS)
        encode_bands(form, source, ROWS, both.band(0))

    def check() -> None:
        for k in range(COPIES):
            check_bands(both.form, both.band(k), both.count)

    met = bytes_per_core("form chosen and bands made", make, size, MAKE)
    met &= bytes_per_core("bands checked", check, COPIES * both.one, CHECK)
    met &= bytes_per_core(
        "bands taken back", lambda: decode_bands(both.form, both.band(0), ROWS, back.ctypes.data), size, None
    )
    return met


def main() -> int:
    options = kernel_options(__doc__)
    both = Both()
    bits = both.one * 8 / (ROWS * COLS)
    print(
        f"{runtime.threads()} threads, {ROWS} x {COLS}, {bits:.3f} bits per weight, medians of {options.pairs} pairs"
    )
    met = making(both)
    for vectors in sorted(TARGETS) if options.quick else (1, 2, 3, 4, 8, 16, 32, 128):
        met &= products(both, vectors, options.pairs)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
