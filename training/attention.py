"""Causal softmax attention inside each of many packed documents, forward and backward.

Knows: that rows of one document see its earlier rows only. Does not know: where queries, keys and values
come from (`model`).

Documents are short, so one small product each costs far less than a masked one over a whole window.
"""

from __future__ import annotations

import torch


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, starts, scale):
        out = torch.empty_like(v)
        bounds = list(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True))
        longest = max(b - a for a, b in bounds)
        above = torch.full((longest, longest), float("-inf")).triu(1)
        kept = []
        for a, b in bounds:
            n = b - a
            qs, ks, vs = (x[a:b].transpose(0, 1) for x in (q, k, v))
            score = torch.baddbmm(above[:n, :n], qs, ks.transpose(1, 2), alpha=scale)
            p = torch.softmax(score, dim=2)
            out[a:b] = torch.bmm(p, vs).transpose(0, 1)
            kept.append(p)
        ctx.save_for_backward(q, k, v)
        ctx.kept = (bounds, kept, scale)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v = ctx.saved_tensors
        bounds, kept, scale = ctx.kept
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        for (a, b), p in zip(bounds, kept, strict=True):
            qs, ks, vs, do = (x[a:b].transpose(0, 1) for x in (q, k, v, dout))
            dv[a:b] = torch.bmm(p.transpose(1, 2), do).transpose(0, 1)
            dp = torch.bmm(do, vs.transpose(1, 2))
            dscore = p * (dp - (dp * p).sum(2, keepdim=True)) * scale
            dq[a:b] = torch.bmm(dscore, ks).transpose(0, 1)
            dk[a:b] = torch.bmm(dscore.transpose(1, 2), qs).transpose(0, 1)
        return dq, dk, dv, None, None


def attention(q, k, v, starts, scale):
    """`[N, heads, v_dim]`. q, k `[N, heads, dim]`, v `[N, heads, v_dim]`; starts: first row of each
    document, and N; scale multiplies the scores."""
    return _Attention.apply(q.contiguous(), k.contiguous(), v.contiguous(), starts, scale)
