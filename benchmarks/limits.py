"""What this machine can do at most: bytes per second from memory, and float32 FMAs per second in registers.

    python benchmarks/limits.py

Knows: two loops that do nothing else. The other benchmarks run them beside their own, in turn.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import numpy.typing as npt
from numba.core import cgutils

from kimistream.kernels import runtime
from kimistream.kernels.runtime import argument, kernel, run
from kimistream.kernels.simd import F32, FEAT, I64, N, P, at, call, load, op, store
from kimistream.kernels.simd import types as numba_types

PIECE = 1 << 20
SUMS = 12
ROUNDS = 20_000
WIDTH = 16 if "avx512f" in FEAT else 8 if "avx2" in FEAT else 4


def kernel_options(description: str | None) -> argparse.Namespace:
    """What is said on the command line of a benchmark of kernels; threads are set."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="only what has a target")
    options = parser.parse_args()
    if options.threads is not None:
        runtime.set_threads(options.threads)
    return options


@op(numba_types.void, P, N, P)
def read_all(b, p, nbytes, result):
    """The sum of all vectors, eight at a time."""
    from llvmlite import ir

    lanes = ir.VectorType(F32, WIDTH)
    size = WIDTH * 4
    sums = [cgutils.alloca_once_value(b, ir.Constant(lanes, [0.0] * WIDTH)) for _ in range(8)]
    with cgutils.for_range_slice(b, I64(0), nbytes, I64(8 * size), I64) as (i, _):
        for k, slot in enumerate(sums):
            b.store(b.fadd(b.load(slot), load(b, p, b.add(i, I64(k * size)), lanes)), slot)
    for slot in sums[1:]:
        b.store(b.fadd(b.load(sums[0]), b.load(slot)), sums[0])
    store(b, b.load(sums[0]), result, I64(0))


@op(numba_types.void, P, N)
def multiply_all(b, p, rounds):
    """SUMS independent chains of FMAs, which cover the latency of one."""
    from llvmlite import ir

    lanes = ir.VectorType(F32, WIDTH)
    factor = load(b, p, None, lanes)
    sums = [cgutils.alloca_once_value(b, load(b, p, None, lanes)) for _ in range(SUMS)]
    with cgutils.for_range(b, rounds):
        for slot in sums:
            b.store(call(b, f"llvm.fma.v{WIDTH}f32", lanes, b.load(slot), factor, factor), slot)
    for k, slot in enumerate(sums):
        store(b, b.load(slot), p, I64(k * WIDTH * 4))


@kernel("void(int64, int64, int64)")
def _read_piece(a, item, worker):
    result = at(argument(a, 1) + worker * 4096)
    read_all(at(argument(a, 0) + item * PIECE), PIECE, result)


@kernel("void(int64, int64, int64)")
def _multiply_piece(a, item, worker):
    multiply_all(at(argument(a, 0) + worker * 4096), ROUNDS)


def _results() -> npt.NDArray[np.float32]:
    return np.zeros((runtime.threads() + 1) * 1024, np.float32)


def read_seconds(memory: npt.NDArray[np.uint8]) -> float:
    """Seconds to read `memory` (whole MiB of it) with all compute threads."""
    results = _results()
    arguments = np.array([memory.ctypes.data, results.ctypes.data], np.int64)
    start = time.perf_counter()
    run(_read_piece, arguments, memory.nbytes // PIECE)
    return time.perf_counter() - start


def fma_rate(pieces: int = 64) -> float:
    """Float32 operations per second (an FMA is two) with all compute threads."""
    results = _results()
    arguments = np.array([results.ctypes.data], np.int64)
    start = time.perf_counter()
    run(_multiply_piece, arguments, pieces)
    return pieces * ROUNDS * SUMS * WIDTH * 2 / (time.perf_counter() - start)


def main() -> None:
    memory = np.ones(1 << 30, np.uint8)
    for threads in (1, 2, runtime.threads()):
        if threads > 2 or threads <= runtime.config.NUMBA_NUM_THREADS:
            runtime.set_threads(threads)
            fma_rate()
            rates = sorted(memory.nbytes / read_seconds(memory) / 1e9 for _ in range(7))
            peaks = sorted(fma_rate() / 1e9 for _ in range(7))
            print(f"{threads} threads: {rates[3]:6.1f} GB/s read (best {rates[-1]:.1f}), ", end="")
            print(f"{peaks[3]:6.1f} GFLOP/s of float32 FMAs (best {peaks[-1]:.1f})")


if __name__ == "__main__":
    main()
