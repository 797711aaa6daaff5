"""Elementwise chains of the pass, each compiled to one loop where a C++ compiler is there.

Knows: the formulas of ARCHITECTURE sections 3 to 7 that are no matrix products.
Does not know: parameters by name, layers.

`KIMISTREAM_TRAIN_EAGER=1` runs them uncompiled (slower, and rounded differently).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.nn.functional as F

L2_EPS = 1e-6


def _fuse(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    if os.environ.get("KIMISTREAM_TRAIN_EAGER"):
        return function
    return torch.compile(function, dynamic=False)


@_fuse
def rms(x, weight, eps):
    """Section 3."""
    return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))


@_fuse
def mix_rms(entries, key, weight, eps):
    """Section 4's mix of the stack and the running sum, then the norm of the block that follows."""
    scores = [
        (v * key).sum(-1, keepdim=True) * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
        for v in entries
    ]
    top = scores[0]
    for score in scores[1:]:
        top = torch.maximum(top, score)
    powers = [torch.exp(score - top) for score in scores]
    total = sum(powers)
    h = sum(v * (power / total) for v, power in zip(entries, powers, strict=True))
    return weight * (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps))


@_fuse
def kda_inputs(raw, taps, position, f, dt_bias, a_log, b, heads, lower_bound):
    """Section 5 steps 2 to 5: q, k, v, decay `[N, heads, dim]` and beta `[N, heads]`.

    raw `[N, 3 width]` are q, k, v before the convolution; taps `[kernel, 3 width]`, the last one for the
    current position; position `[N]` counts from 0 in each document.
    """
    n = raw.shape[0]
    kernel = taps.shape[0]
    y = raw * taps[kernel - 1]
    for back in range(1, kernel):
        earlier = F.pad(raw, (0, 0, back, 0))[:n]
        y = y + torch.where((position >= back)[:, None], earlier, 0.0) * taps[kernel - 1 - back]
    y = F.silu(y).view(n, 3, heads, -1)
    q, k, v = y[:, 0], y[:, 1], y[:, 2]
    q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + L2_EPS) * q.shape[-1] ** -0.5
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + L2_EPS)
    z = (f + dt_bias).view(n, heads, -1)
    decay = torch.exp(lower_bound * torch.sigmoid(torch.exp(a_log)[:, None] * z))
    return q, k, v, decay, torch.sigmoid(b)


@_fuse
def gated_norm(o, weight, gate, eps):
    """Section 5 step 7 before the output matrix: o `[N, heads, dim]`, gate `[N, heads * dim]`."""
    y = weight * (o * torch.rsqrt(o.square().mean(-1, keepdim=True) + eps))
    return y.flatten(1) * torch.sigmoid(gate)


@_fuse
def gated(o, gate):
    """Section 6 step 5 before the output matrix."""
    return o * torch.sigmoid(gate)


@_fuse
def situ(gate_up, beta, linear_beta):
    """Section 7: gate and up side by side, `[N, 2 width]`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * linear_beta * torch.tanh(up / linear_beta)
