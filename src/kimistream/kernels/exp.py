"""exp, sigmoid, tanh and softplus in float32, sixteen lanes at a time, the same bits on every CPU.

Knows: the approximations and their errors. Does not know: who needs them.

Each result depends on its own argument alone, never on the lane or the length of the array. Error bounds, in
units in the last place of the exact result, over every finite float32 argument (measured on all exponents; a
result below 2^-126 counts the spacing of the subnormals, 2^-149, as its unit):

=========  =====  ==============================================================================
exp        1.1    subnormal results are right; above 88.722839 infinity, below -103.97208 zero
sigmoid    2.4    1 for large x; for very negative x it is exp(x), down to subnormals
tanh       1.7    its own polynomial below 0.625, so tiny arguments come back unchanged
softplus   2.7    log(1 + exp(x)); exp(x) for very negative x, x for large x
=========  =====  ==============================================================================

exp(-inf) = 0, exp(inf) = inf, sigmoid(-inf) = 0, sigmoid(inf) = 1, tanh(+-inf) = +-1, softplus(-inf) = 0,
softplus(inf) = inf; NaN gives NaN. exp(0) is exactly 1. Signed zeros: tanh(-0) = -0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from .simd import as_f, as_i, fma, lane, ldf, ptr, splat, stf, vabs, vneg, vsel_lt
from .simd_more import INLINE, KERNEL, constant, ldf_part, stf_part, with_sign

Floats = npt.NDArray[np.float32]

LOG2_E = 1.44269504
MAGIC = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer, which stands in the low bits of the sum
MAGIC_BITS = 0x4B400000
LN2_HIGH = 0.6931471824645996  # float32(ln 2)
LN2_LOW = -1.9046542121259336e-09


@njit(**INLINE)
def _reduced_exp(x):
    """exp(x) = p * 2^n for |x| below 2^21: p in [0.7, 1.42] and the bits of MAGIC + n."""
    shifted = fma(x, constant(LOG2_E), constant(MAGIC))
    n = shifted - constant(MAGIC)
    r = fma(n, constant(-LN2_HIGH), x)  # exact
    r = fma(n, constant(-LN2_LOW), r)
    p = constant(0.0013818698935210705)
    p = fma(p, r, constant(0.008368715643882751))
    p = fma(p, r, constant(0.04166829213500023))
    p = fma(p, r, constant(0.1666652113199234))
    p = fma(p, r, constant(0.4999999403953552))
    return fma(p, r * r, r) + constant(1.0), as_i(shifted)


@njit(**INLINE)
def vexp(x):
    """exp of sixteen lanes."""
    # the comparisons are written so that NaN passes through
    x = vsel_lt(constant(89.0), x, constant(89.0), x)
    x = vsel_lt(x, constant(-104.0), constant(-104.0), x)
    p, bits = _reduced_exp(x)
    # 2^n in two factors: n runs from -150 to 128, beyond what one exponent field holds
    n = bits + (254 - MAGIC_BITS)
    half = n >> 1
    return p * as_f(half << 23) * as_f((n - half) << 23)


@njit(**INLINE)
def _vexp_nonpositive(x):
    """exp of sixteen lanes that are not above zero (or NaN): the same bits as vexp."""
    p, bits = _reduced_exp(vsel_lt(x, constant(-104.0), constant(-104.0), x))
    return p * as_f((bits + (127 + 64 - MAGIC_BITS)) << 23) * constant(2.0**-64)


@njit(**INLINE)
def _vexp_normal(x):
    """exp of sixteen lanes whose results are normal numbers: -87 <= x <= 88, or NaN."""
    p, bits = _reduced_exp(x)
    return p * as_f((bits + (127 - MAGIC_BITS)) << 23)


@njit(**INLINE)
def sigmoid_parts(x):
    """sigmoid(x) = n / d with d in [1, 2]: for those who divide by something else as well."""
    zero, one = constant(0.0), constant(1.0)
    e = _vexp_nonpositive(vneg(vabs(x)))
    return vsel_lt(x, zero, e, one), one + e


@njit(**INLINE)
def vsigmoid(x):
    """1 / (1 + exp(-x)) of sixteen lanes."""
    n, d = sigmoid_parts(x)
    return n / d


@njit(**INLINE)
def tanh_parts(x):
    """tanh(x) = n / d with d in [1, 2]."""
    one, limit = constant(1.0), constant(0.625)
    a = vabs(x)
    z = a * a
    p = constant(-0.005692296661436558)
    p = fma(p, z, constant(0.02062816731631756))
    p = fma(p, z, constant(-0.05373651534318924))
    p = fma(p, z, constant(0.13331405818462372))
    p = fma(p, z, constant(-0.3333328068256378))
    small = fma(p * z, a, a)
    capped = vsel_lt(constant(20.0), a, constant(20.0), a)
    e = _vexp_normal(capped * constant(-2.0))
    n = vsel_lt(a, limit, small, one - e)
    d = vsel_lt(a, limit, one, one + e)
    return with_sign(n, x), d


@njit(**INLINE)
def vtanh(x):
    """Hyperbolic tangent of sixteen lanes."""
    n, d = tanh_parts(x)
    return n / d


@njit(**INLINE)
def vsoftplus(x):
    """log(1 + exp(x)) of sixteen lanes, as max(x, 0) + log1p(exp(-|x|))."""
    zero = constant(0.0)
    e = _vexp_nonpositive(vneg(vabs(x)))
    # log(1 + e) / e as a polynomial about the middle of 0..1, where its terms hardly cancel
    t = e - constant(0.5)
    p = constant(0.005114004947245121)
    p = fma(p, t, constant(-0.008491725660860538))
    p = fma(p, t, constant(0.011657827533781528))
    p = fma(p, t, constant(-0.020267706364393234))
    p = fma(p, t, constant(0.03661920502781868))
    p = fma(p, t, constant(-0.06770579516887665))
    p = fma(p, t, constant(0.1326102465391159))
    p = fma(p, t, constant(-0.28852689266204834))
    p = fma(p, t, constant(0.8109301924705505))
    return vsel_lt(x, zero, zero, x) + e * p


@njit(**INLINE)
def exp1(x):
    """vexp of one float32."""
    return lane(vexp(splat(np.float32(x))), 0)


@njit(**INLINE)
def sigmoid1(x):
    """vsigmoid of one float32."""
    return lane(vsigmoid(splat(np.float32(x))), 0)


@njit(**KERNEL)
def _exp(x, y):
    xs, ys, whole = ptr(x), ptr(y), x.size & ~15
    for i in range(0, whole, 16):
        stf(ys, i * 4, vexp(ldf(xs, i * 4)))
    if whole < x.size:
        stf_part(ys, whole * 4, vexp(ldf_part(xs, whole * 4, x.size - whole)), x.size - whole)


@njit(**KERNEL)
def _sigmoid(x, y):
    xs, ys, whole = ptr(x), ptr(y), x.size & ~15
    for i in range(0, whole, 16):
        stf(ys, i * 4, vsigmoid(ldf(xs, i * 4)))
    if whole < x.size:
        stf_part(ys, whole * 4, vsigmoid(ldf_part(xs, whole * 4, x.size - whole)), x.size - whole)


@njit(**KERNEL)
def _tanh(x, y):
    xs, ys, whole = ptr(x), ptr(y), x.size & ~15
    for i in range(0, whole, 16):
        stf(ys, i * 4, vtanh(ldf(xs, i * 4)))
    if whole < x.size:
        stf_part(ys, whole * 4, vtanh(ldf_part(xs, whole * 4, x.size - whole)), x.size - whole)


@njit(**KERNEL)
def _softplus(x, y):
    xs, ys, whole = ptr(x), ptr(y), x.size & ~15
    for i in range(0, whole, 16):
        stf(ys, i * 4, vsoftplus(ldf(xs, i * 4)))
    if whole < x.size:
        stf_part(ys, whole * 4, vsoftplus(ldf_part(xs, whole * 4, x.size - whole)), x.size - whole)


def exp(x: Floats, out: Floats | None = None) -> Floats:
    """exp of each number of a contiguous float32 array, into `out` (may be x) or a new array."""
    out = np.empty_like(x) if out is None else out
    _exp(x.reshape(-1), out.reshape(-1))
    return out


def sigmoid(x: Floats, out: Floats | None = None) -> Floats:
    """Sigmoid of each number of a contiguous float32 array, into `out` (may be x) or a new array."""
    out = np.empty_like(x) if out is None else out
    _sigmoid(x.reshape(-1), out.reshape(-1))
    return out


def tanh(x: Floats, out: Floats | None = None) -> Floats:
    """tanh of each number of a contiguous float32 array, into `out` (may be x) or a new array."""
    out = np.empty_like(x) if out is None else out
    _tanh(x.reshape(-1), out.reshape(-1))
    return out


def softplus(x: Floats, out: Floats | None = None) -> Floats:
    """softplus of each number of a contiguous float32 array, into `out` (may be x) or a new array."""
    out = np.empty_like(x) if out is None else out
    _softplus(x.reshape(-1), out.reshape(-1))
    return out
