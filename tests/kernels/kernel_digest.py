"""One sha256 per kernel over seeded inputs; `python kernel_digest.py` prints them as JSON (for another CPU target).

The inputs are large enough that every kernel has several items to share among threads.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kimistream.kernels import exp
from kimistream.kernels.conv import short_conv
from kimistream.kernels.formats import Activation, WeightFormat
from kimistream.kernels.gather import widen
from kimistream.kernels.glu import ABSENT, glu, sigmoid_gate
from kimistream.kernels.kda import kda_decay, kda_qk_norm, kda_recurrence
from kimistream.kernels.mla import mla_attend
from kimistream.kernels.norm import gated_head_norm, rms_norm
from kimistream.kernels.residual import residual_mix
from kimistream.kernels.router import route


def _normal(seed: int, *shape: int, scale: float = 1.0) -> Any:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def _functions() -> list[Any]:
    bits = np.arange(0, 2**32, 40_009, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([bits.view(np.float32), _normal(1, 20_000, scale=20.0)])
    x = x[~np.isnan(x)]
    return [f(x) for f in (exp.exp, exp.sigmoid, exp.tanh, exp.softplus)]


def _norms() -> list[Any]:
    x, gate, weight = _normal(2, 9, 4099), _normal(3, 9, 4096, scale=4.0), _normal(4, 4099)
    a, b = np.empty_like(x), np.empty_like(gate)
    rms_norm(x, weight, 1e-5, a)
    gated_head_norm(np.ascontiguousarray(x[:, :4096]), weight[:128].copy(), 1e-5, gate, b)
    return [a, b]


def _residual() -> list[Any]:
    out = np.empty((9, 4099), np.float32)
    proj = _normal(8, 4099, scale=0.1)
    residual_mix(_normal(5, 8, 9, 4099), 7, _normal(6, 9, 4099), _normal(7, 4099), proj, 1e-5, out)
    return [out]


def _glus() -> list[Any]:
    gate, up = _normal(9, 2, 9, 5003, scale=6.0)
    cases = [(Activation.SILU, ABSENT), (Activation.SITU, 25.0), (Activation.SITU, ABSENT)]
    outs = [np.empty_like(gate) for _ in range(4)]
    for (activation, limit), out in zip(cases, outs, strict=False):
        glu(activation, gate, up, 4.0, limit, out)
    sigmoid_gate(up, gate, outs[3])
    return outs


def _routes() -> list[Any]:
    logits, bias, made = _normal(10, 40, 896, scale=2.0), _normal(11, 896, scale=0.1), []
    for sigmoid, groups in ((True, 1), (False, 1), (True, 8)):
        ids, weights = np.empty((40, 16), np.int32), np.empty((40, 16), np.float32)
        route(logits, bias, 16, sigmoid, groups, max(1, groups // 2), True, 2.446, ids, weights)
        made += [ids, weights]
    return made


def _conv() -> list[Any]:
    tail, out = _normal(12, 3, 1100), np.empty((9, 1100), np.float32)
    short_conv(_normal(13, 9, 1100), _normal(14, 1100, 4), tail, out)
    return [out, tail]


def _kda() -> list[Any]:
    made = []
    for heads, d, bound in ((6, 128, -5.0), (20, 48, math.nan)):
        q, k, v, f = (_normal(15 + i, 9, heads * d) for i in range(4))
        kda_qk_norm(q, k, heads, d)
        kda_decay(f, _normal(19, heads * d), _normal(20, heads), bound, f)
        state, out = _normal(21, heads, d, d), np.empty_like(q)
        kda_recurrence(q, k, v, f, _normal(22, 9, heads), state, out)
        made += [q, k, f, state, out]
    return made


def _mla() -> list[Any]:
    made = []
    for heads, nope, rope, v, rank in ((9, 32, 16, 40, 96), (3, 12, 8, 10, 20)):
        weights = _normal(23, heads * (nope + v), rank, scale=0.2).astype(np.float16)
        q, latents = _normal(24, 75, heads * (nope + rope)), _normal(25, 75, rank + rope)
        out = np.empty((75, heads * v), np.float32)
        sizes = 0, heads, nope, rope, v, rank
        mla_attend(WeightFormat.F16, weights.ctypes.data, *sizes, q, latents, 0, out)
        made.append(out)
    return made


def _widened() -> list[Any]:
    stored = np.random.default_rng(26).integers(0, 0x7C00, 100_003).astype(np.uint16)
    out = np.empty((2, 100_003), np.float32)
    widen(WeightFormat.BF16, stored.ctypes.data, 100_003, out[0])
    widen(WeightFormat.F16, stored.ctypes.data, 100_003, out[1])
    return [out]


WORK: dict[str, Callable[[], list[Any]]] = {
    "exp": _functions,
    "norm": _norms,
    "residual": _residual,
    "glu": _glus,
    "router": _routes,
    "conv": _conv,
    "kda": _kda,
    "mla": _mla,
    "gather": _widened,
}


def digests() -> dict[str, str]:
    """kernel file -> sha256 of all its results."""
    return {
        name: hashlib.sha256(b"".join(a.tobytes() for a in work())).hexdigest() for name, work in WORK.items()
    }


if __name__ == "__main__":
    print(json.dumps(digests()))
