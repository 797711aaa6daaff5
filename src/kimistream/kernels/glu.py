"""The gated activations that join `gate` and `up`: SiLU-GLU and SiTU-GLU (ARCHITECTURE section 7).

Knows: silu(g) * u, and situ(g, u) = b tanh(g / b) * sigmoid(g) * c tanh(u / c), where without c the last
factor is u itself. Does not know: what matrices made `gate` and `up`.

Element by element, each result from its own two numbers alone. The sigmoid sees the uncapped gate.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import get_num_threads, njit, prange

from .exp import sigmoid_parts, tanh_parts
from .formats import Activation
from .simd import ldf, ptr, splat, stf
from .simd_more import INLINE, KERNEL, ldf_part, stf_part

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


@njit(**KERNEL)
def _glu(activation, gate, up, beta, linear_beta, out, start, stop):
    gs, us, ys = ptr(gate), ptr(up), ptr(out)
    whole = start + ((stop - start) & ~15)
    for i in range(start, whole, 16):
        stf(ys, i * 4, glu16(activation, ldf(gs, i * 4), ldf(us, i * 4), beta, linear_beta))
    if whole < stop:
        n = stop - whole
        y = glu16(activation, ldf_part(gs, whole * 4, n), ldf_part(us, whole * 4, n), beta, linear_beta)
        stf_part(ys, whole * 4, y, n)


@njit(parallel=True, **KERNEL)
def _glu_parallel(activation, gate, up, beta, linear_beta, out, parts):
    n = gate.size
    step = ((n + parts - 1) // parts + 15) & ~15
    for i in prange(parts):
        _glu(activation, gate, up, beta, linear_beta, out, min(i * step, n), min((i + 1) * step, n))


def glu(activation: int, gate: Floats, up: Floats, beta: float, linear_beta: float, out: Floats) -> None:
    """out = activation(gate, up), all float32 [T, N] and contiguous; out may be gate or up.

    `activation` is a formats.Activation. `beta` and `linear_beta` matter for SiTU only; linear_beta NaN
    (`ABSENT`) leaves `up` as it is.
    """
    a, b, c, n = gate.reshape(-1), up.reshape(-1), out.reshape(-1), gate.size
    limits = np.float32(beta), np.float32(linear_beta)
    if n < 16384:
        _glu(int(activation), a, b, *limits, c, 0, n)
    else:
        _glu_parallel(int(activation), a, b, *limits, c, get_num_threads())
