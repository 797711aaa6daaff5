"""exp and log for choosing tokens: fixed-point integers, so that no sum has an order.

Knows: how a logit's distance from the largest becomes a whole number proportional to its probability.
Does not know: which tokens take part, or what is done with the numbers.

Why not np.exp: its result depends on the CPU. Measured with NumPy 2.4 on one machine by switching CPU
features off: float64 exp and log differ between AVX-512 and the rest, float32 exp between AVX2 and SSE; and
where NumPy hands over to the C library (as math.exp does), that one answers differently with and without FMA.
A single different bit may turn another token up. So everything here is made of operations whose results IEEE
754 or whole numbers fix: one multiplication, addition or rounding in each NumPy call (NumPy never fuses two),
tables made with whole numbers, and the logarithm of `decimal`, which is correctly rounded.

A weight is round(exp(-x) * 2^bits) as int64, `bits` such that the weights of a whole vocabulary cannot
overflow (44 for 163,840 tokens). Sums are exact. A token less likely than the most likely one by a factor of
more than 2^(bits + 1) weighs 0; all such tokens together have less than one part in 10^8 of the probability.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Floats64 = npt.NDArray[np.float64]
Ints64 = npt.NDArray[np.int64]

STEPS = 256
"""Table entries per factor of two."""
LN2 = 0.6931471805599453
BLOCK = 8192
"""Numbers worked on at a time: a block's temporaries stay in the inner caches."""
DECIMAL = Context(prec=50)


def bits_for(count: int) -> int:
    """The scale of weights of which `count` are summed: sums stay below 2^62."""
    return 62 - count.bit_length()


@cache
def _table(bits: int) -> Floats64:
    """2^(bits - i / STEPS) for i up to the first whose weight, one half, rounds to zero."""
    # 2^(1/256) with 120 bits after the point: eight square roots of 2
    root = 2 << 120
    for _ in range(STEPS.bit_length() - 1):
        root = math.isqrt(root << 120)
    powers = [1 << 120]
    for _ in range(STEPS):
        powers.append(powers[-1] * root >> 120)
    # a quotient of whole numbers is rounded once, correctly
    octave = [powers[STEPS - i] / (2 << 120) for i in range(STEPS)]
    return np.array([math.ldexp(octave[i % STEPS], bits - i // STEPS) for i in range((bits + 1) * STEPS + 1)])


def weights(logits: Floats | Floats64, peak: float, temperature: float, bits: int) -> Ints64:
    """round(exp((logits - peak) / temperature) * 2^bits), float32 or float64 `[n]` to int64 `[n]`.

    logits: none above `peak`; minus infinity weighs 0. Off by less than 0.51 + 2^-50 of the exact number.
    """
    table = _table(bits)
    limit = float(len(table) - 1)
    scale = STEPS / LN2 / temperature
    # exp(-x) = 2^(-(n + f) / STEPS), n whole, |f| <= 1/2; the second factor by its series, error below 4e-17
    a = -LN2 / STEPS
    c1, c2, c3, c4 = a, a * a / 2, a * a * a / 6, a * a * a * a / 24
    out = np.empty(len(logits), np.int64)
    # blocks, and no temporary as long as the vocabulary: new pages would cost more than the arithmetic
    size = min(BLOCK, len(logits))
    buffers, index_buffer = np.empty((4, size)), np.empty(size, np.intp)
    for start in range(0, len(logits), BLOCK):
        block = logits[start : start + BLOCK]
        f, n, p, factor = buffers[:, : len(block)]
        index = index_buffer[: len(block)]
        f[:] = block
        np.subtract(peak, f, out=f)
        np.multiply(f, scale, out=f)
        np.minimum(f, limit, out=f)
        np.rint(f, out=n)
        np.subtract(f, n, out=f)
        np.multiply(f, c4, out=p)
        for c in (c3, c2, c1):
            np.add(p, c, out=p)
            np.multiply(p, f, out=p)
        np.add(p, 1.0, out=p)
        index[:] = n
        np.take(table, index, out=factor, mode="clip")
        np.multiply(p, factor, out=p)
        np.rint(p, out=p)
        out[start : start + BLOCK] = p
    return out


def pick(weight: Ints64, target: int) -> int:
    """The index at which the running sum of `[n]` first exceeds the target (0 to the sum less 1)."""
    for start in range(0, len(weight), BLOCK):
        block = weight[start : start + BLOCK]
        mass = int(block.sum())
        if target < mass:
            return start + int(np.searchsorted(np.cumsum(block), target, side="right"))
        target -= mass
    raise ValueError("the target is not below the sum of the weights")


def log_sum(total: int, bits: int) -> float:
    """ln(total / 2^bits) for a sum of weights, correctly rounded."""
    return float(DECIMAL.subtract(DECIMAL.ln(Decimal(total)), _ln_power(bits)))


@cache
def _ln_power(bits: int) -> Decimal:
    return DECIMAL.ln(Decimal(1 << bits))
