"""Kimi Delta Attention: the norm of q and k, the decay, and the recurrence (ARCHITECTURE section 5).

Knows: for each head, S = diag(decay) S; u = v - S^T k; S = S + beta k u^T; o = S^T q, in this order.
Does not know: where q, k, v come from (projections, conv) or what is done with o.

Orders. Both sums over the key index (S^T k and S^T q) run in two chains, even keys and odd keys, each
ascending by one FMA per key, added at the end; S^T k is taken as sum((k * decay) * S) over the state before
the decay, and the new state is fma(k, beta * u, decay * S). Each value column is by itself, so it does not
matter how many are worked on together; rows are taken one after the other, so a sequence may be cut into
runs anywhere.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from kimistream.errors import KimistreamError

from . import runtime
from .exp import exp1, sigmoid1, vexp, vsigmoid, vsoftplus
from .jobs import JOB, address, job, real, split
from .norm import square_sum
from .runtime import argument, kernel
from .simd import F32, I64, VF, N, P, call, ld1, ldf, load, op, splat, splat_, step, stf, store
from .simd_more import INLINE

Floats = npt.NDArray[np.float32]

L2_EPS = 1e-6
WIDE = 8
"""Vectors of value columns worked on at once: long reads, and chains enough to hide an FMA's latency."""


# ------------------------------------------------------------------ q and k
@njit(**INLINE)
def _normalise(p, off, d, factor):
    r = splat(np.float32(factor) / sqrt(square_sum(p, off, d) + np.float32(L2_EPS)))
    for i in range(off, off + d * 4, 64):
        stf(p, i, ldf(p, i) * r)


@kernel(JOB)
def _qk_norm(a, item, thread):
    q, k, heads, d, each = address(a, 0), address(a, 1), argument(a, 2), argument(a, 3), argument(a, 4)
    scale = real(a, 5)
    for h in range(item * each, min(heads, (item + 1) * each)):
        _normalise(q, h * d * 4, d, scale)
        _normalise(k, h * d * 4, d, np.float32(1.0))


def kda_qk_norm(q: Floats, k: Floats, heads: int, d: int) -> None:
    """In place, per head: q = q / sqrt(sum(q^2) + 1e-6) * d^-0.5 and k = k / sqrt(sum(k^2) + 1e-6).

    q and k: contiguous float32 [T, heads * d], d a multiple of 16.
    """
    _check(d)
    count = q.size // d
    items, each = split(count, 2 * d)
    job(_qk_norm, items, q, k, count, d, each, float(d) ** -0.5)


# ------------------------------------------------------------------ the decay
@kernel(JOB)
def _decay(a, item, thread):
    f, bias, a_log, out = address(a, 0), address(a, 1), address(a, 2), address(a, 3)
    count, heads, d, each = argument(a, 4), argument(a, 5), argument(a, 6), argument(a, 7)
    bound = real(a, 8)
    for i in range(item * each, min(count, (item + 1) * each)):
        h = i % heads
        rate = splat(exp1(ld1(a_log, h * 4)))
        for j in range(0, d * 4, 64):
            z = ldf(f, i * d * 4 + j) + ldf(bias, h * d * 4 + j)
            if bound == bound:
                g = splat(bound) * vsigmoid(rate * z)
            else:
                g = splat(np.float32(-1.0)) * rate * vsoftplus(z)
            stf(out, i * d * 4 + j, vexp(g))


def kda_decay(f: Floats, dt_bias: Floats, a_log: Floats, lower_bound: float, out: Floats) -> None:
    """out = exp(g); g = lower_bound * sigmoid(exp(A_log) * z) or, if that is NaN, -exp(A_log) softplus(z).

    z = f + dt_bias; f and out: contiguous float32 [T, heads * d], out may be f; dt_bias: float32 [heads *
    d]; a_log: float32, its first `heads` entries one per head (ARCHITECTURE section 5, step 4: the released
    tensor is longer than the heads). The number of heads is a_log.size: pass those entries alone.
    """
    heads = a_log.size
    d = dt_bias.size // heads
    _check(d)
    count = f.size // d
    items, each = split(count, 2 * d)
    job(_decay, items, f, dt_bias, a_log, out, count, heads, d, each, float(lower_bound))


# ------------------------------------------------------------------ the recurrence
def _sweeps(vectors: int) -> tuple[Any, Any]:
    """The two passes over `vectors` * 16 value columns of a state of d rows and d columns."""
    zero = ir.Constant(VF, [0.0] * 16)

    def chains(b: Any) -> Any:
        """Sums of even and of odd keys, one for each vector of columns."""
        sums = [[cgutils.alloca_once(b, VF) for _ in range(vectors)] for _ in range(2)]
        for slot in sums[0] + sums[1]:
            b.store(zero, slot)
        return sums

    def total(b: Any, sums: Any, i: int) -> Any:
        return b.fadd(b.load(sums[0][i]), b.load(sums[1][i]))

    def one(b: Any, p: Any, key: Any) -> Any:
        return splat_(b, load(b, p, b.mul(key, I64(4)), F32, 4))

    def fma(b: Any, x: Any, y: Any, z: Any) -> Any:
        return call(b, "llvm.fma.v16f32", VF, x, y, z)

    def each_key(b: Any, d: Any, visit: Any) -> None:
        with cgutils.for_range(b, b.lshr(d, I64(1))) as loop:
            even = b.shl(loop.index, I64(1))
            visit(even, 0)
            visit(b.add(even, I64(1)), 1)

    @op(types.void, P, N, P, P, types.float32, P)
    def read(b, state, d, faded, v, beta, u):
        """u = beta * (v - sum over keys of faded * state), where faded = k * decay."""
        sums = chains(b)

        def visit(key, parity):
            k, at = one(b, faded, key), b.mul(key, b.shl(d, I64(2)))
            for i, slot in enumerate(sums[parity]):
                s = load(b, state, b.add(at, I64(64 * i)), VF, 4)
                b.store(fma(b, k, s, b.load(slot)), slot)

        each_key(b, d, visit)
        for i in range(vectors):
            gap = b.fsub(load(b, v, I64(64 * i), VF, 4), total(b, sums, i))
            store(b, b.fmul(splat_(b, beta), gap), u, I64(64 * i))

    @op(types.void, P, N, P, P, P, P, P)
    def write(b, state, d, decay, k, q, u, o):
        """state = decay * state + k u^T, and then o = sum over keys of q * state."""
        sums = chains(b)
        us = [load(b, u, I64(64 * i), VF, 4) for i in range(vectors)]

        def visit(key, parity):
            g, kk, qq, at = one(b, decay, key), one(b, k, key), one(b, q, key), b.mul(key, b.shl(d, I64(2)))
            for i, slot in enumerate(sums[parity]):
                off = b.add(at, I64(64 * i))
                s = fma(b, kk, us[i], b.fmul(g, load(b, state, off, VF, 4)))
                store(b, s, state, off)
                b.store(fma(b, qq, s, b.load(slot)), slot)

        each_key(b, d, visit)
        for i in range(vectors):
            store(b, total(b, sums, i), o, I64(64 * i))

    return read, write


_read_one, _write_one = _sweeps(1)
_read_wide, _write_wide = _sweeps(WIDE)


@kernel(JOB)
def _recurrence(a, item, thread):
    """Item: one head. Scratch of a thread: u (128), then k * decay of a row (d)."""
    q, k, v, decay, betas = address(a, 0), address(a, 1), address(a, 2), address(a, 3), address(a, 4)
    out = address(a, 6)
    rows, heads, d = argument(a, 8), argument(a, 9), argument(a, 10)
    state = step(address(a, 5), item * d * d * 4)
    u = step(address(a, 7), thread * (128 + d) * 4)
    faded = step(u, 512)
    for t in range(rows):
        row = (t * heads + item) * d * 4
        for i in range(0, d * 4, 64):
            stf(faded, i, ldf(k, row + i) * ldf(decay, row + i))
        beta = sigmoid1(ld1(betas, (t * heads + item) * 4))
        g, kk, qq, vv, oo = step(decay, row), step(k, row), step(q, row), step(v, row), step(out, row)
        c, end = 0, d * 4
        while c + WIDE * 64 <= end:
            _read_wide(step(state, c), d, faded, step(vv, c), beta, u)
            _write_wide(step(state, c), d, g, kk, qq, u, step(oo, c))
            c += WIDE * 64
        while c < end:
            _read_one(step(state, c), d, faded, step(vv, c), beta, u)
            _write_one(step(state, c), d, g, kk, qq, u, step(oo, c))
            c += 64


def kda_recurrence(
    q: Floats, k: Floats, v: Floats, decay: Floats, beta_logits: Floats, state: Floats, out: Floats
) -> None:
    """The recurrence over one run of rows of one sequence; state moves forward, out = o.

    q, k (normalised), v, decay (= exp(g)) and out: contiguous float32 [T, heads * d], out none of the others;
    beta_logits: float32 [T, heads], the sigmoid is taken here; state: float32 [heads, d (key), d (value)], in
    place, zero before the first token. d a multiple of 16. Parallel over heads.
    """
    heads, d = state.shape[0], state.shape[1]
    _check(d)
    scratch = np.empty((runtime.threads(), 128 + d), np.float32)
    arrays = q, k, v, decay, beta_logits, state, out, scratch
    job(_recurrence, heads, *arrays, q.shape[0], heads, d)


def _check(d: int) -> None:
    if d <= 0 or d % 16:
        raise KimistreamError(
            f"KDA heads of width {d}; understood: a multiple of 16 (one vector of the kernels)",
            "linear_attn_config.head_dim of config.json says so: this model is not supported.",
        )
