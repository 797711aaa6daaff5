"""The weighted sum of a row's expert outputs, always in the order of the experts' ids.

Knows: which slot of which row an output belongs to.
Does not know: in what order the outputs were computed.
"""

from __future__ import annotations

from numba import njit


@njit(
    "void(float32[:,::1],float32[:,::1],float32[:,::1])",
    nogil=True,
    cache=True,
    boundscheck=False,
    error_model="numpy",
)
def combine(expert_out, weights, out):
    """out[t] = sum over slots j, ascending, of weights[t, j] * expert_out[t * k + j].

    expert_out: float32 `[T * k, L]`; weights: float32 `[T, k]`; out: float32 `[T, L]`
    (ARCHITECTURE section 7, step 3). The columns are independent, so vectorising them changes no bits.
    """
    rows, k = weights.shape
    width = out.shape[1]
    for t in range(rows):
        w = weights[t, 0]
        for i in range(width):
            out[t, i] = w * expert_out[t * k, i]
        for j in range(1, k):
            w = weights[t, j]
            for i in range(width):
                out[t, i] += w * expert_out[t * k + j, i]
