"""Register blocks of float32 products: a few rows with a few rows (dots), a few rows times a matrix (outer).

Knows: how a block of results stays in registers, and in which order each of them is summed:

- `dots`: 16 lanes take one FMA for each 16 numbers, ascending; then the lanes are halved 16 -> 8 -> 4 -> 2
  -> 1.
- `outer`: each result starts as itself times a scale and takes one FMA for each inner index, ascending.

Neither order depends on the block. Does not know: what the rows mean.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .simd import F32, FEAT, I32, I64, LANES, VF, N, P, call, load, op, splat_, store


def _shuffle(b: Any, v: Any, w: Any, index: list[int]) -> Any:
    return b.shuffle_vector(v, w, ir.Constant(ir.VectorType(I32, len(index)), index))


def _halved(b: Any, vectors: list[Any]) -> Any:
    """The lanes of each vector summed by halving, all at once: a vector of len(vectors) sums, a power of 2.

    At every step, a vector holds one or several pieces of `width` lanes, each the rest of one sum.
    """
    pieces, width = 1, LANES
    while width > 1:
        half = width // 2
        low = [p * width + i for p in range(pieces) for i in range(half)]
        high = [at + half for at in low]
        if len(vectors) > 1:
            # two vectors of `pieces` pieces become one of twice as many, half as wide
            total = pieces * width
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            low += [total + at for at in low]
            high += [total + at for at in high]
            vectors = [b.fadd(_shuffle(b, v, w, low), _shuffle(b, v, w, high)) for v, w in pairs]
            pieces *= 2
        else:
            v = vectors[0]
            vectors = [b.fadd(_shuffle(b, v, v, low), _shuffle(b, v, v, high))]
        width = half
    return vectors[0]


def _power_of_2(n: int) -> int:
    """The least power of 2 that is not below n."""
    return 1 << (n - 1).bit_length()


def dots(rows: int, columns: int) -> Any:
    """out[r, c] = x[r] . y[c] for a block of rows of x and of y, `vectors` * 16 numbers each.

    Arguments: x, bytes of its row, y, bytes of its row, vectors, out, bytes of its row.
    """

    @op(types.void, P, N, P, N, N, P, N)
    def compute(b, x, x_row, y, y_row, vectors, out, out_row):
        sums = [cgutils.alloca_once(b, VF) for _ in range(rows * columns)]
        for slot in sums:
            b.store(ir.Constant(VF, [0.0] * LANES), slot)
        with cgutils.for_range(b, vectors) as loop:
            at = b.shl(loop.index, I64(6))
            ys = [load(b, y, b.add(at, b.mul(y_row, I64(c))), VF, 4) for c in range(columns)]
            for r in range(rows):
                v = load(b, x, b.add(at, b.mul(x_row, I64(r))), VF, 4)
                for c in range(columns):
                    slot = sums[r * columns + c]
                    b.store(call(b, "llvm.fma.v16f32", VF, v, ys[c], b.load(slot)), slot)
        each = max(1, LANES // columns)  # rows whose sums fill one vector
        for first in range(0, rows, each):
            held = range(first, min(rows, first + each))
            values = [b.load(sums[r * columns + c]) for r in held for c in range(columns)]
            results = _halved(b, values + values[-1:] * (_power_of_2(len(values)) - len(values)))
            for i, r in enumerate(held):
                piece = _shuffle(b, results, results, list(range(i * columns, (i + 1) * columns)))
                store(b, piece, out, b.mul(out_row, I64(r)))

    return compute


def outer(rows: int, columns: int) -> Any:
    """acc[r] = scale[r] * acc[r] + sum over i < n of x[r, i] * m[i], for `columns` * 16 numbers of each row.

    Arguments: x, bytes of its row, n, m, bytes of its row, scale (float32, one for each row), acc, bytes of
    its row.
    """

    @op(types.void, P, N, N, P, N, P, P, N)
    def compute(b, x, x_row, n, m, m_row, scale, acc, acc_row):
        sums = {}
        for r in range(rows):
            factor = splat_(b, load(b, scale, I64(4 * r), F32, 4))
            for c in range(columns):
                slot = sums[r, c] = cgutils.alloca_once(b, VF)
                old = load(b, acc, b.add(b.mul(acc_row, I64(r)), I64(64 * c)), VF, 4)
                b.store(b.fmul(factor, old), slot)
        with cgutils.for_range(b, n) as loop:
            m_at = b.mul(loop.index, m_row)
            ms = [load(b, m, b.add(m_at, I64(64 * c)), VF, 4) for c in range(columns)]
            x_at = b.shl(loop.index, I64(2))
            for r in range(rows):
                v = splat_(b, load(b, x, b.add(x_at, b.mul(x_row, I64(r))), F32, 4))
                for c in range(columns):
                    b.store(call(b, "llvm.fma.v16f32", VF, v, ms[c], b.load(sums[r, c])), sums[r, c])
        for (r, c), slot in sums.items():
            store(b, b.load(slot), acc, b.add(b.mul(acc_row, I64(r)), I64(64 * c)))

    return compute


TILE = 4 if "avx512f" in FEAT else 2
"""Rows and columns of a full block: 16 sums in 32 wide registers, or 4 where 16 lanes take several."""

dots_full, dots_column = dots(TILE, TILE), dots(TILE, 1)
dots_row, dots_one = dots(1, 4), dots(1, 1)
outer_full, outer_column = outer(TILE, TILE), outer(TILE, 1)
outer_row, outer_one = outer(1, 4), outer(1, 1)
