"""The gated activations that join `gate` and `up`: SiLU-GLU and SiTU-GLU (ARCHITECTURE section 7).

Knows: silu(g) * u, and situ(g, u) = b tanh(g / b) * sigmoid(g) * c tanh(u / c), where without c the last
factor is u itself. Does not know: what matrices made `gate` and `up`.

Element by element, each result from its own two numbers alone. The sigmoid sees the uncapped gate.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from .exp import sigmoid_parts, tanh_parts
from .formats import Activation
from .jobs import JOB, address, job, real, split
from .runtime import argument, kernel
from .simd import ldf, splat, stf
from .simd_more import INLINE, ldf_part, stf_part

Floats = npt.NDArray[np.float32]

SITU = int(Activation.SITU)
ABSENT = math.nan
"""`linear_beta` of a SiTU without a limit on `up`."""


@njit(**INLINE)
def silu_glu16(gate, up):
    """gate * sigmoid(gate) * up, sixteen lanes."""
    n, d = sigmoid_parts(gate)
    return gate * n / d * up


@njit(**INLINE)
def situ_glu16(gate, up, beta, linear_beta):
    """SiTU-GLU, sixteen lanes; beta > 0 and linear_beta (NaN: no limit) are float32 scalars.

    The divisions by beta are products with its rounded reciprocal (exact for a power of two), which
    compilers take out of the loop.
    """
    one = np.float32(1.0)
    tn, td = tanh_parts(gate * splat(one / beta))
    sn, sd = sigmoid_parts(gate)
    left = splat(beta) * tn * sn / (td * sd)
    if linear_beta == linear_beta:
        un, ud = tanh_parts(up * splat(one / linear_beta))
        up = splat(linear_beta) * un / ud
    return left * up


@njit(**INLINE)
def glu16(activation, gate, up, beta, linear_beta):
    """The activation numbered `activation` (formats.Activation), sixteen lanes; the branch is made once."""
    if activation == SITU:
        return situ_glu16(gate, up, beta, linear_beta)
    return silu_glu16(gate, up)


@kernel(JOB)
def _glu(a, item, thread):
    gate, up, out = address(a, 0), address(a, 1), address(a, 2)
    activation, n, each = argument(a, 3), argument(a, 4), argument(a, 5)
    beta, linear_beta = real(a, 6), real(a, 7)
    start, stop = item * each, min(n, (item + 1) * each)
    whole = start + ((stop - start) & ~15)
    for i in range(start * 4, whole * 4, 64):
        stf(out, i, glu16(activation, ldf(gate, i), ldf(up, i), beta, linear_beta))
    if whole < stop:
        i, left = whole * 4, stop - whole
        y = glu16(activation, ldf_part(gate, i, left), ldf_part(up, i, left), beta, linear_beta)
        stf_part(out, i, y, left)


@kernel(JOB)
def _sigmoid_gate(a, item, thread):
    o, gate, out = address(a, 0), address(a, 1), address(a, 2)
    n, each = argument(a, 3), argument(a, 4)
    start, stop = item * each, min(n, (item + 1) * each)
    whole = start + ((stop - start) & ~15)
    for i in range(start * 4, whole * 4, 64):
        s, d = sigmoid_parts(ldf(gate, i))
        stf(out, i, ldf(o, i) * s / d)
    if whole < stop:
        i, left = whole * 4, stop - whole
        s, d = sigmoid_parts(ldf_part(gate, i, left))
        stf_part(out, i, ldf_part(o, i, left) * s / d, left)


def glu(activation: int, gate: Floats, up: Floats, beta: float, linear_beta: float, out: Floats) -> None:
    """out = activation(gate, up), all contiguous float32 [T, N]; out may be gate or up.

    `activation` is a formats.Activation. `beta` and `linear_beta` matter for SiTU only; linear_beta NaN
    (`ABSENT`) leaves `up` as it is.
    """
    items, each = split(-(-gate.size // 16), 16)
    job(_glu, items, gate, up, out, int(activation), gate.size, each * 16, float(beta), float(linear_beta))


def sigmoid_gate(o: Floats, gate: Floats, out: Floats) -> None:
    """out = o * sigmoid(gate): contiguous float32 of one shape, out may be o (ARCHITECTURE section 6)."""
    items, each = split(-(-o.size // 16), 16)
    job(_sigmoid_gate, items, o, gate, out, o.size, each * 16)
