"""The delta rule of KDA over packed documents, forward and backward, compiled by Numba.

Knows: the recurrence of ARCHITECTURE section 5 step 6 and its gradient; that every document starts from a
zero state. Does not know: what makes q, k, v, the decay and beta (`layers`).

One state is 32 by 32 numbers, so a plain scan keeps it in the first-level cache and is as fast as the
matrix products around it; it also has no exponentials of long sums, which the chunked form has to guard.
The forward pass keeps the state every SEGMENT tokens and the backward pass computes the states between again.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit

SEGMENT = 16
DIM = 32

# Sums may be reassociated: training needs speed, and the export is checked against the engine.
# One thread: starting Numba's threads would also change how many PyTorch uses, and so how sums are rounded.
_OPTIONS = {"fastmath": True, "cache": True, "error_model": "numpy"}


@njit(**_OPTIONS)
def _forward(q, k, v, decay, beta, starts, kept_at, out, u_out, kept):
    heads = q.shape[1]
    for task in range((starts.size - 1) * heads):
        document, head = task // heads, task % heads
        state = np.zeros((DIM, DIM), np.float32)
        u = np.zeros(DIM, np.float32)
        o = np.zeros(DIM, np.float32)
        first = starts[document]
        for t in range(first, starts[document + 1]):
            if (t - first) % SEGMENT == 0:
                place = kept_at[document] + (t - first) // SEGMENT
                for i in range(DIM):
                    for j in range(DIM):
                        kept[place, head, j, i] = state[i, j]
            for j in range(DIM):
                u[j] = v[t, head, j]
                o[j] = np.float32(0)
            for i in range(DIM):
                a, key = decay[t, head, i], k[t, head, i]
                for j in range(DIM):
                    state[i, j] *= a
                    u[j] -= key * state[i, j]
            b = beta[t, head]
            for i in range(DIM):
                scaled, query = b * k[t, head, i], q[t, head, i]
                for j in range(DIM):
                    state[i, j] += scaled * u[j]
                    o[j] += query * state[i, j]
            for j in range(DIM):
                out[t, head, j] = o[j]
                u_out[t, head, j] = u[j]


@njit(**_OPTIONS)
def _backward(q, k, decay, beta, u, starts, kept_at, kept, dout, dq, dk, dv, ddecay, dbeta):
    # States are transposed here (value rows, keys contiguous): all but one of the sums of a step then run
    # down the rows and need no sum across a vector.
    heads = q.shape[1]
    for task in range((starts.size - 1) * heads):
        document, head = task // heads, task % heads
        first, last = starts[document], starts[document + 1]
        states = np.zeros((SEGMENT + 1, DIM, DIM), np.float32)
        ds = np.zeros((DIM, DIM), np.float32)
        row = np.zeros(DIM, np.float32)
        read_q = np.zeros(DIM, np.float32)
        written = np.zeros(DIM, np.float32)
        read_k = np.zeros(DIM, np.float32)
        carried = np.zeros(DIM, np.float32)
        for index in range((last - first + SEGMENT - 1) // SEGMENT - 1, -1, -1):
            begin = first + index * SEGMENT
            end = min(begin + SEGMENT, last)
            states[0] = kept[kept_at[document] + index, head]
            for t in range(begin, end - 1):
                n = t - begin
                for j in range(DIM):
                    scaled = beta[t, head] * u[t, head, j]
                    for i in range(DIM):
                        states[n + 1, j, i] = states[n, j, i] * decay[t, head, i] + scaled * k[t, head, i]
            for t in range(end - 1, begin - 1, -1):
                n = t - begin
                b = beta[t, head]
                for i in range(DIM):
                    read_q[i] = np.float32(0)
                    written[i] = np.float32(0)
                    read_k[i] = np.float32(0)
                    carried[i] = np.float32(0)
                for j in range(DIM):
                    do, uj = dout[t, head, j], u[t, head, j]
                    scaled = b * uj
                    total = np.float32(0)
                    for i in range(DIM):
                        new = states[n, j, i] * decay[t, head, i] + scaled * k[t, head, i]
                        gradient = ds[j, i] + q[t, head, i] * do
                        row[i] = gradient
                        read_q[i] += new * do
                        written[i] += gradient * uj
                        total += gradient * k[t, head, i]
                    du = b * total
                    dv[t, head, j] = du
                    for i in range(DIM):
                        old = states[n, j, i]
                        gradient = row[i] - k[t, head, i] * du
                        read_k[i] += old * du
                        carried[i] += old * gradient
                        ds[j, i] = decay[t, head, i] * gradient
                total_beta = np.float32(0)
                for i in range(DIM):
                    dq[t, head, i] = read_q[i]
                    dk[t, head, i] = b * written[i] - decay[t, head, i] * read_k[i]
                    ddecay[t, head, i] = carried[i]
                    total_beta += k[t, head, i] * written[i]
                dbeta[t, head] = total_beta


class _DeltaRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, decay, beta, starts):
        q, k, v, decay, beta = (x.contiguous() for x in (q, k, v, decay, beta))
        out, u = torch.empty_like(v), torch.empty_like(v)
        counts = -(-np.diff(starts) // SEGMENT)
        kept_at = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        kept = np.empty((kept_at[-1], q.shape[1], DIM, DIM), np.float32)
        arrays = [x.detach().numpy() for x in (q, k, v, decay, beta)]
        _forward(*arrays, starts, kept_at, out.numpy(), u.numpy(), kept)
        ctx.save_for_backward(q, k, decay, beta, u)
        ctx.places = (starts, kept_at, kept)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, decay, beta, u = ctx.saved_tensors
        grads = [torch.empty_like(x) for x in (q, k, u, decay, beta)]
        arrays = [x.detach().numpy() for x in (q, k, decay, beta, u)]
        _backward(*arrays, *ctx.places, dout.contiguous().numpy(), *[g.numpy() for g in grads])
        return (*grads, None)


def delta_rule(q, k, v, decay, beta, starts):
    """Outputs `[N, heads, dim]` of the recurrence.

    q, k, v, decay: float32 `[N, heads, dim]`, dim equal for keys and values; beta: `[N, heads]`, after its
    sigmoid; starts: int64 array, the first row of every document and N at the end.
    """
    return _DeltaRule.apply(q, k, v, decay, beta, starts)


def delta_rule_plain(q, k, v, decay, beta, starts):
    """The same in a few lines of PyTorch, differentiated by it: what the tests compare with."""
    out = []
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        state = torch.zeros(q.shape[1], q.shape[2], v.shape[2], dtype=q.dtype)
        for t in range(first, last):
            state = state * decay[t][:, :, None]
            u = v[t] - torch.einsum("hij,hi->hj", state, k[t])
            state = state + beta[t][:, None, None] * k[t][:, :, None] * u[:, None, :]
            out.append(torch.einsum("hij,hi->hj", state, q[t]))
    return torch.stack(out)
