"""The routed experts over all rows of a batch: rows sorted by expert, one product per expert and matrix.

Knows: the sum over the chosen experts and its gradient. Does not know: the router, the activation's form.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


class _GroupedLinear(torch.autograd.Function):
    """`out[a:b] = x[a:b] @ weight[e].T` for the rows a..b of every expert e."""

    @staticmethod
    def forward(ctx, x, weight, bounds):
        out = x.new_empty(x.shape[0], weight.shape[1])
        for e, (a, b) in enumerate(bounds):
            if b > a:
                torch.mm(x[a:b], weight[e].t(), out=out[a:b])
        ctx.save_for_backward(x, weight)
        ctx.bounds = bounds
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        dx, dw = torch.empty_like(x), torch.zeros_like(weight)
        for e, (a, b) in enumerate(ctx.bounds):
            if b > a:
                torch.mm(grad[a:b], weight[e], out=dx[a:b])
                torch.mm(grad[a:b].t(), x[a:b], out=dw[e])
        return dx, dw, None


class _Permute(torch.autograd.Function):
    """Rows in another order, each of the n source rows used `copies` times; no scatter in the gradient."""

    @staticmethod
    def forward(ctx, x, source, back):
        ctx.back, ctx.rows = back, x.shape[0]
        return x.index_select(0, source)

    @staticmethod
    def backward(ctx, grad):
        rows = grad.index_select(0, ctx.back)
        return rows.view(ctx.rows, -1, grad.shape[1]).sum(1), None, None


def grouped_experts(
    latent: torch.Tensor,
    chosen: torch.Tensor,
    weight: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    w3: torch.Tensor,
    activation: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """`[N, latent]`: sum over k of weight[n, k] * expert chosen[n, k] of latent[n].

    latent `[N, latent]`, chosen int64 and weight `[N, K]`; w1, w3 `[E, inner, latent]`, w2
    `[E, latent, inner]`; `activation` takes gate and up side by side, `[*, 2 inner]`.
    """
    n, k = chosen.shape
    flat = chosen.flatten()
    order = torch.sort(flat, stable=True).indices
    back = torch.empty_like(order)
    back[order] = torch.arange(n * k)
    ends = torch.cumsum(torch.bincount(flat, minlength=w1.shape[0]), 0).tolist()
    bounds = list(zip([0, *ends[:-1]], ends, strict=True))
    rows = _Permute.apply(latent, order // k, back)
    gate_up = _GroupedLinear.apply(rows, torch.cat((w1, w3), dim=1), bounds)
    out = _GroupedLinear.apply(activation(gate_up), w2, bounds)
    out = _Permute.apply(out, back, order).view(n, k, -1)
    return torch.bmm(weight[:, None, :], out)[:, 0]
