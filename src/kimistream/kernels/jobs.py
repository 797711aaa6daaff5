"""A kernel's arguments in one block of int64, and kernels handed out item by item to the threads.

Knows: how arrays, integers and real numbers are laid in the block and read from it.
Does not know: what a kernel computes, or how threads share the items (runtime).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from . import runtime
from .runtime import Kernel, argument
from .simd import F32, N, P, at, load, op
from .simd_more import INLINE

JOB = "void(int64, int64, int64)"
"""Signature of a kernel that `job` runs: (address of the arguments, item, thread)."""

SMALL = 16384
"""Numbers below which a job is not worth a second thread."""


@op(types.float32, P, N)
def _real32(b, p, off):
    return load(b, p, off, F32, 4)


@njit(**INLINE)
def address(arguments, i):
    """Argument i, an array: its first byte."""
    return at(argument(arguments, i))


@njit(**INLINE)
def real(arguments, i):
    """Argument i, a real number: float32."""
    return _real32(at(arguments), i * 8)


def job(kernel: Kernel, items: int, *values: Any) -> None:
    """Run `kernel` for the items 0..items-1. Values: arrays (by their address), ints, floats (as float32)."""
    block = np.empty(len(values), np.int64)
    reals = block.view(np.float32)
    for i, value in enumerate(values):
        if isinstance(value, np.ndarray):
            block[i] = value.__array_interface__["data"][0]
        elif isinstance(value, float):
            reals[2 * i] = value
        else:
            block[i] = value
    runtime.run(kernel, block, items)


def split(rows: int, numbers: int, most: int = 64) -> tuple[int, int]:
    """(items, rows of an item) for `rows` rows of `numbers` numbers: pieces of at least SMALL numbers."""
    each = max(1, -(-SMALL // max(1, numbers)), -(-rows // most))
    return -(-rows // each), each
