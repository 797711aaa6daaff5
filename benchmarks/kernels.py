"""Matrix kernels beside the limits of the machine, measured in turn in the same run; medians of the pairs.

    python benchmarks/kernels.py [--threads 2] [--pairs 9] [--quick]

One vector is held against the rate at which memory can be read, many against the rate of float32 FMAs. The weights
rotate over more than 1 GB, so no cache holds them. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kimistream.kernels import runtime
from kimistream.kernels.experts import grouped_experts, scratch_bytes
from kimistream.kernels.formats import Activation, WeightFormat
from kimistream.kernels.matrix import matmul, padded, row_bytes, scale_row_bytes
from limits import PIECE, fma_rate, kernel_options, read_seconds

Bytes = npt.NDArray[np.uint8]
TOTAL = 1_200_000_000
SHAPES = [
    ("bf16", WeightFormat.BF16, 12288, 7168),
    ("MXFP4", WeightFormat.MXFP4, 3072, 3584),
    ("MXFP4", WeightFormat.MXFP4, 3584, 3072),
]
TARGETS = {
    ("bf16", 1): 0.80,
    ("MXFP4", 1): 0.45,
    ("bf16", 16): 0.45,
    ("MXFP4", 16): 0.45,
    ("bf16", 128): 0.60,
}
TARGETS["MXFP4", 128] = 0.60


def stored(fmt: WeightFormat, rows: int, cols: int, total: int = TOTAL) -> tuple[Bytes, int, int]:
    """Random matrices one behind the other: (memory, bytes of one, where in it the scales begin)."""
    weights, scales = rows * row_bytes(fmt, cols), rows * scale_row_bytes(fmt, cols)
    one = weights + scales
    count = max(2, -(-total // one))
    rng = np.random.default_rng(0)
    if fmt == WeightFormat.MXFP4:
        single = np.concatenate(
            [rng.integers(0, 256, weights, np.uint8), rng.integers(118, 124, scales, np.uint8)]
        )
    else:
        values = rng.standard_normal(weights // 2).astype(np.float32)
        single = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    memory = np.empty(-(-count * one // PIECE) * PIECE, np.uint8)
    for k in range(count):
        memory[k * one : (k + 1) * one] = single
    memory[count * one :] = 0
    return memory, one, weights


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def products(
    memory: Bytes, fmt: WeightFormat, rows: int, cols: int, one: int, scale: int, count: int, pairs: int
):
    """Pairs of (this kernel's rate, the limit's rate): bytes/s for one vector, operations/s for more."""
    rng = np.random.default_rng(1)
    xs = rng.standard_normal((count, padded(cols))).astype(np.float32)
    y = np.empty((count, rows), np.float32)
    base, copies = memory.ctypes.data, memory.nbytes // one
    turns = copies if count == 1 else max(1, min(copies, int(1e10 / (2 * rows * cols * count))))
    at = 0

    def work() -> None:
        nonlocal at
        for _ in range(turns):
            weight = base + at % copies * one
            matmul(fmt, weight, weight + scale, rows, cols, xs, y)
            at += 1

    work()
    made = []
    for _ in range(pairs):
        if count == 1:
            limit = memory.nbytes / read_seconds(memory)
            made.append((turns * one / timed(work), limit))
        else:
            limit = fma_rate()
            made.append((turns * 2.0 * rows * cols * count / timed(work), limit))
    return made


def experts(threads: int, pairs: int, tasks: int, vectors: int):
    """Pairs of (bytes/s of experts computed, bytes/s of memory) for `tasks` experts with `vectors` rows each."""
    fmt, width, inner = WeightFormat.MXFP4, 3584, 3072
    memory, one, _ = stored(fmt, inner, 3 * width)  # as many bytes as an expert has
    w, s = inner * width // 2, inner * width // 32
    copies = memory.nbytes // one
    memory[:] = 120
    xs = np.random.default_rng(1).standard_normal((16, padded(width))).astype(np.float32)
    start = np.arange(tasks + 1, dtype=np.int32) * vectors
    index = np.arange(tasks * vectors, dtype=np.int32) % 16
    order = np.arange(tasks * vectors, dtype=np.int32)
    out = np.empty((tasks * vectors, width), np.float32)
    scratch = np.empty(scratch_bytes(vectors, inner, width) // 4, np.float32)
    calls, at = max(1, copies // tasks), 0

    def work() -> None:
        nonlocal at
        for _ in range(calls):
            first = memory.ctypes.data + (at + np.arange(tasks)) % copies * one
            parts = [
                first,
                first + w,
                first + w + s,
                first + 2 * w + s,
                first + 2 * (w + s),
                first + 3 * w + 2 * s,
            ]
            addresses = np.stack(parts, axis=1)
            grouped_experts(
                fmt, addresses, start, index, order, xs, inner, Activation.SITU, 4.0, 25.0, out, scratch
            )
            at += tasks

    work()
    return [(calls * tasks * one / timed(work), memory.nbytes / read_seconds(memory)) for _ in range(pairs)]


def report(name: str, made: list[tuple[float, float]], unit: str, target: float | None) -> bool:
    """Print one line; True when the target is met (or there is none)."""
    figures = np.array(made) / 1e9
    share = float(np.median(figures[:, 0] / figures[:, 1]))
    figure, limit = np.median(figures, axis=0)
    met = target is None or share >= target
    wanted = "" if target is None else f", target {target:.0%}: {'met' if met else 'MISSED'}"
    print(f"{name:<34} {figure:7.1f} of {limit:6.1f} {unit} = {share:4.0%}{wanted}", flush=True)
    return met


def main() -> int:
    options = kernel_options(__doc__)
    threads, met = runtime.threads(), True
    print(f"{threads} threads, medians of {options.pairs} pairs")
    for name, fmt, rows, cols in SHAPES:
        memory, one, scale = stored(fmt, rows, cols)
        for count in (1, 16, 128) if options.quick else (1, 2, 4, 8, 16, 32, 128):
            made = products(memory, fmt, rows, cols, one, scale, count, options.pairs)
            label = f"{name} {rows} x {cols}, {count} vector{'s' * (count > 1)}"
            met &= report(label, made, "GB/s" if count == 1 else "GFLOP/s", TARGETS.get((name, count)))
        del memory
    for tasks, vectors in ((1, 1), (16, 1), (32, 3)):
        made = experts(threads, options.pairs, tasks, vectors)
        report(f"MXFP4 experts: {tasks} x {vectors} vectors", made, "GB/s", None)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
