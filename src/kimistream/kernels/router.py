"""Which experts a row goes to, and with what weights (ARCHITECTURE section 7).

Knows: scores by our own sigmoid or a softmax; selection by score + bias, exact ties to the lower expert id;
groups of experts; weights from the unbiased scores. Does not know: what an expert is.

All of it is a function of the row's logits alone. A row with NaN among its logits still gets `top_k`
different expert ids in range (the caller refuses logits that are not finite).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from . import runtime
from .exp import vexp, vsigmoid
from .jobs import JOB, address, job, real, split
from .runtime import argument, kernel
from .simd import ld1, ldf, splat, st1, step, stf
from .simd_more import INLINE, ld_i32, ldf_part, st_i32

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@njit(**INLINE)
def _logits(p, i, n):
    return ldf(p, i * 4) if i + 16 <= n else ldf_part(p, i * 4, n - i)


@njit(**INLINE)
def _softmax(logits, n, scores):
    top = ld1(logits, 0)
    for e in range(1, n):
        top = max(top, ld1(logits, e * 4))
    for i in range(0, n, 16):
        stf(scores, i * 4, vexp(_logits(logits, i, n) - splat(top)))
    total = np.float32(0.0)
    for e in range(n):
        total += ld1(scores, e * 4)
    for i in range(0, n, 16):
        stf(scores, i * 4, ldf(scores, i * 4) / splat(total))


@njit(**INLINE)
def _insert(values, ids, filled, k, value, i):
    """Put (value, i) into the best k so far, best first; i ascends over the calls, so ties keep the lower."""
    if filled == k:
        if not value > ld1(values, (k - 1) * 4):
            return filled
        j = k - 1
    else:
        j = filled
        filled += 1
    while j > 0 and value > ld1(values, (j - 1) * 4):
        st1(values, j * 4, ld1(values, (j - 1) * 4))
        st_i32(ids, j * 4, ld_i32(ids, (j - 1) * 4))
        j -= 1
    st1(values, j * 4, value)
    st_i32(ids, j * 4, i)
    return filled


@njit(**INLINE)
def _group_value(biased, first, size):
    """The sum of the two best biased scores of a group (its only one, if it has one)."""
    best, second = ld1(biased, first * 4), np.float32(0.0)
    for j in range(1, size):
        v = ld1(biased, (first + j) * 4)
        if v > best:
            best, second = v, best
        elif j == 1 or v > second:
            second = v
    return best + second


@njit(**INLINE)
def _ascending(ids, k):
    for i in range(1, k):
        v, j = ld_i32(ids, i * 4), i
        while j > 0 and ld_i32(ids, (j - 1) * 4) > v:
            st_i32(ids, j * 4, ld_i32(ids, (j - 1) * 4))
            j -= 1
        st_i32(ids, j * 4, v)


@kernel(JOB)
def _route(a, item, thread):
    logits, bias, ids, weights = address(a, 0), address(a, 1), address(a, 2), address(a, 3)
    rows, experts, k, each = argument(a, 5), argument(a, 6), argument(a, 7), argument(a, 8)
    sigmoid, groups, kept, renormalize = argument(a, 9), argument(a, 10), argument(a, 11), argument(a, 12)
    scaling = real(a, 13)
    width = (experts + 15) & ~15
    scores = step(address(a, 4), thread * argument(a, 14) * 4)
    biased = step(scores, width * 4)
    values = step(biased, width * 4)
    group_values = step(values, k * 4)
    group_ids = step(group_values, groups * 4)
    size = experts // groups
    for t in range(item * each, min(rows, (item + 1) * each)):
        row, to, share = step(logits, t * experts * 4), step(ids, t * k * 4), step(weights, t * k * 4)
        if sigmoid:
            for i in range(0, experts, 16):
                stf(scores, i * 4, vsigmoid(_logits(row, i, experts)))
        else:
            _softmax(row, experts, scores)
        for i in range(0, experts, 16):
            stf(biased, i * 4, ldf(scores, i * 4) + _logits(bias, i, experts))
        filled = 0
        if groups > 1:
            for g in range(groups):
                value = _group_value(biased, g * size, size)
                filled = _insert(group_values, group_ids, filled, kept, value, g)
            _ascending(group_ids, kept)
        else:
            st_i32(group_ids, 0, 0)
        filled = 0
        for g in range(kept):
            first = ld_i32(group_ids, g * 4) * size
            for e in range(first, first + size):
                filled = _insert(values, to, filled, k, ld1(biased, e * 4), e)
        _ascending(to, k)
        total = np.float32(0.0)
        for i in range(k):
            w = ld1(scores, ld_i32(to, i * 4) * 4)
            st1(share, i * 4, w)
            total += w
        for i in range(k):
            w = ld1(share, i * 4)
            if renormalize and k > 1:
                w = w / (total + np.float32(1e-20))
            st1(share, i * 4, w * scaling)


def route(
    logits: Floats,
    bias: Floats,
    top_k: int,
    sigmoid: bool,
    groups: int,
    topk_groups: int,
    renormalize: bool,
    scaling: float,
    ids: Ints,
    weights: Floats,
) -> None:
    """The chosen experts of each row: ids int32 [T, top_k] ascending, weights float32 [T, top_k] alike.

    logits: contiguous float32 [T, E]; bias: float32 [E]. Scores are sigmoid(logits) or their softmax. With
    more than one group, only the `topk_groups` groups with the best sums of two compete; groups must divide
    E and hold at least top_k experts in the kept ones. Weights are divided by (their sum + 1e-20) if
    `renormalize` and top_k > 1, then multiplied by `scaling`.
    """
    rows, experts = logits.shape
    if groups <= 1:
        groups = topk_groups = 1
    items, each = split(rows, experts * 4)
    floats = 2 * (-(-experts // 16) * 16) + top_k + 2 * groups
    scratch = np.empty((runtime.threads(), floats), np.float32)
    switches = int(sigmoid), groups, topk_groups, int(renormalize)
    shape = rows, experts, top_k, each
    job(_route, items, logits, bias, ids, weights, scratch, *shape, *switches, float(scaling), floats)
