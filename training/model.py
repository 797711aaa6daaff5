"""Kimi K3 in PyTorch for training, small and on a CPU, written from ARCHITECTURE sections 3 to 7.

Knows: the parameters by their stored names, the forward pass over packed documents.
Does not know: how the weights change (`train`), how they are stored (`export`), where ids come from.

All rows of a batch are one matrix `[N, hidden]`: documents lie one behind the other, and `Packed` says
where they begin. Elementwise chains are compiled (`fused`), matrix products are not. With `bf16_products`
the inputs and results of the large products are rounded to bf16, for speed in training only; evaluation
and export checks compute in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from training import fused
from training.attention import attention
from training.delta import delta_rule
from training.experts import grouped_experts
from training.quantise import to_bf16, to_mxfp4
from training.shape import Shape

LOW_RANK_EPS = 1e-6
"""eps of the q_a and kv_a norms (section 3)."""

FLOAT32_NAMES = ("A_log", "dt_bias", "_conv1d", "o_norm", "e_score_correction_bias")
"""Parameters that the released form stores as float32."""


@dataclass
class Packed:
    """Rows of documents. ids int64 `[N]`; position int64 `[N]`, from 0 in each document; starts int64
    array, first row of each document and N."""

    ids: torch.Tensor
    position: torch.Tensor
    starts: np.ndarray

    @classmethod
    def of(cls, documents: list[list[int]], rows: int = 0, pad: int = 0) -> Packed:
        """Documents one behind the other, then one of `pad` up to `rows` in all."""
        have = sum(map(len, documents))
        if have < rows:
            documents = [*documents, [pad] * (rows - have)]
        lengths = [len(document) for document in documents]
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        position = torch.cat([torch.arange(length) for length in lengths])
        return cls(torch.tensor([token for document in documents for token in document]), position, starts)


def parameter_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Stored name without prefix and ".weight" -> shape; the experts of a layer are stacked in one."""
    hidden = shape.hidden
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens": (shape.vocab, hidden),
        "lm_head": (shape.vocab, hidden),
        "norm": (hidden,),
        "output_attn_res_norm": (hidden,),
        "output_attn_res_proj": (1, hidden),
    }
    for layer in range(shape.layers):
        at = f"layers.{layer}."
        for name in (
            "input_layernorm",
            "post_attention_layernorm",
            "self_attention_res_norm",
            "mlp_res_norm",
        ):
            shapes[at + name] = (hidden,)
        for name in ("self_attention_res_proj", "mlp_res_proj"):
            shapes[at + name] = (1, hidden)
        own = _mla_shapes(shape) if shape.is_mla(layer) else _kda_shapes(shape)
        shapes |= {f"{at}self_attn.{name}": size for name, size in own.items()}
        if shape.is_moe(layer):
            shapes |= {f"{at}block_sparse_moe.{name}": size for name, size in _moe_shapes(shape).items()}
        else:
            inner = shape.dense_inter
            shapes |= {f"{at}mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")}
            shapes[f"{at}mlp.down_proj"] = (hidden, inner)
    return shapes


def _kda_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    hidden, width = shape.hidden, shape.kda_width
    return {
        **{f"{x}_proj": (width, hidden) for x in "qkvg"},
        **{f"{x}_conv1d": (width, 1, shape.conv) for x in "qkv"},
        "f_a_proj": (shape.kda_dim, hidden),
        "f_b_proj": (width, shape.kda_dim),
        "b_proj": (shape.kda_heads, hidden),
        "A_log": (shape.kda_heads,),
        "dt_bias": (width,),
        "o_norm": (shape.kda_dim,),
        "o_proj": (hidden, width),
    }


def _mla_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    hidden, heads = shape.hidden, shape.mla_heads
    return {
        "q_a_proj": (shape.q_rank, hidden),
        "q_a_layernorm": (shape.q_rank,),
        "q_b_proj": (heads * (shape.nope + shape.rope), shape.q_rank),
        "kv_a_proj_with_mqa": (shape.kv_rank + shape.rope, hidden),
        "kv_a_layernorm": (shape.kv_rank,),
        "kv_b_proj": (heads * (shape.nope + shape.v_dim), shape.kv_rank),
        "g_proj": (heads * shape.v_dim, hidden),
        "o_proj": (hidden, heads * shape.v_dim),
    }


def _moe_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    hidden, latent, inner = shape.hidden, shape.latent, shape.expert_inter
    shared = shape.shared * inner
    return {
        "gate": (shape.experts, hidden),
        "gate.e_score_correction_bias": (shape.experts,),
        "routed_expert_down_proj": (latent, hidden),
        "routed_expert_up_proj": (hidden, latent),
        "routed_expert_norm": (latent,),
        "experts.w1": (shape.experts, inner, latent),
        "experts.w3": (shape.experts, inner, latent),
        "experts.w2": (shape.experts, latent, inner),
        "shared_experts.gate_proj": (shared, hidden),
        "shared_experts.up_proj": (shared, hidden),
        "shared_experts.down_proj": (hidden, shared),
    }


def initial(shape: Shape, seed: int) -> dict[str, torch.Tensor]:
    """The float32 masters before training."""
    draw = torch.Generator().manual_seed(seed)
    masters: dict[str, torch.Tensor] = {}
    for name, size in parameter_shapes(shape).items():
        last = name.rsplit(".", 1)[-1]
        if last.endswith(("norm", "layernorm")):
            masters[name] = torch.ones(size)
        elif last in ("A_log", "e_score_correction_bias") or last.endswith("res_proj"):
            masters[name] = torch.zeros(size)
        elif last == "dt_bias":
            # decays per step from 0.2 % to 50 %, evenly on a logarithmic scale: sigmoid(dt_bias) * 5
            rate = torch.exp(torch.rand(size, generator=draw) * 5.5 - 6.2)
            masters[name] = torch.log(rate / 5) - torch.log1p(-rate / 5)
        elif last.endswith("_conv1d"):
            weight = torch.randn(size, generator=draw) * 0.2
            weight[..., -1] += 0.7  # mostly the current position
            masters[name] = weight
        elif name in ("embed_tokens", "lm_head"):
            masters[name] = torch.randn(size, generator=draw) * (0.5 if name == "embed_tokens" else 0.02)
        else:
            masters[name] = torch.randn(size, generator=draw) * size[-1] ** -0.5
            if last in ("o_proj", "down_proj", "routed_expert_up_proj"):
                masters[name] *= 0.5
    return masters


def stored_form(name: str) -> str:
    """ "f32", "mxfp4" or "bf16": how a parameter is stored, and so what training computes with."""
    if ".experts.w" in name:
        return "mxfp4"
    return "f32" if any(part in name for part in FLOAT32_NAMES) else "bf16"


def as_stored(masters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The values a checkpoint of these masters would hold."""
    change: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "f32": torch.clone,
        "bf16": to_bf16,
        "mxfp4": to_mxfp4,
    }
    return {name: change[stored_form(name)](value) for name, value in masters.items()}


class Model:
    """The pass, over weights in a dict (`as_stored`); holds no weights itself."""

    def __init__(self, shape: Shape, *, bf16_products: bool = False) -> None:
        self.shape = shape
        self._linear = _linear_bf16 if bf16_products else F.linear

    def hidden_rows(
        self, weights: dict[str, torch.Tensor], batch: Packed, loads: list[torch.Tensor] | None = None
    ) -> torch.Tensor:
        """`[N, hidden]` before the head. `loads` receives, per MoE layer, how often each expert was used."""
        shape = self.shape
        s = F.embedding(batch.ids, weights["embed_tokens"])
        stack: list[torch.Tensor] = []
        empty = False
        for layer in range(shape.layers):
            own = _Scope(weights, f"layers.{layer}.")
            x = self._mixed(stack, s, own, "self_attention_res", "input_layernorm")
            if layer % shape.block == 0:
                stack.append(s)
                empty = True
            attention = self._mla if shape.is_mla(layer) else self._kda
            a = attention(x, own.into("self_attn."), batch)
            s = a if empty else s + a
            empty = False
            x = self._mixed(stack, s, own, "mlp_res", "post_attention_layernorm")
            if shape.is_moe(layer):
                m = self._moe(x, own.into("block_sparse_moe."), loads)
            else:
                m = self._mlp(x, own.into("mlp."))
            s = s + m
        top = _Scope(weights, "")
        return self._mixed(stack, s, top, "output_attn_res", "norm")

    def logits(self, weights: dict[str, torch.Tensor], batch: Packed) -> torch.Tensor:
        """`[N, vocab]`."""
        return F.linear(self.hidden_rows(weights, batch), weights["lm_head"])

    def _mixed(self, stack, s, own, mix: str, norm: str) -> torch.Tensor:
        eps = self.shape.eps
        if not stack:
            return fused.rms(s, own[norm], eps)
        key = own[f"{mix}_norm"] * own[f"{mix}_proj"][0]
        return fused.mix_rms([*stack, s], key, own[norm], eps)

    def _kda(self, x, own, batch: Packed) -> torch.Tensor:
        shape = self.shape
        heads, dim, width = shape.kda_heads, shape.kda_dim, shape.kda_width
        names = ("q_proj", "k_proj", "v_proj", "g_proj", "f_a_proj", "b_proj")
        together = self._linear(x, torch.cat([own[name] for name in names]))
        raw, gate, f_low, b = together.split((3 * width, width, dim, heads), dim=1)
        taps = torch.cat([own[f"{name}_conv1d"][:, 0] for name in "qkv"]).t()
        f = F.linear(f_low, own["f_b_proj"])
        q, k, v, decay, beta = fused.kda_inputs(
            raw, taps, batch.position, f, own["dt_bias"], own["A_log"], b, heads, shape.lower_bound
        )
        o = delta_rule(q, k, v, decay, beta, batch.starts)
        return self._linear(fused.gated_norm(o, own["o_norm"], gate, shape.eps), own["o_proj"])

    def _mla(self, x, own, batch: Packed) -> torch.Tensor:
        shape = self.shape
        n, heads = x.shape[0], shape.mla_heads
        names = ("q_a_proj", "kv_a_proj_with_mqa", "g_proj")
        together = self._linear(x, torch.cat([own[name] for name in names]))
        q_low, latent, k_rope, gate = together.split(
            (shape.q_rank, shape.kv_rank, shape.rope, heads * shape.v_dim), dim=1
        )
        q = self._linear(fused.rms(q_low, own["q_a_layernorm"], LOW_RANK_EPS), own["q_b_proj"])
        kv = self._linear(fused.rms(latent, own["kv_a_layernorm"], LOW_RANK_EPS), own["kv_b_proj"])
        k_nope, v = kv.view(n, heads, -1).split((shape.nope, shape.v_dim), dim=2)
        k = torch.cat((k_nope, k_rope[:, None, :].expand(-1, heads, -1)), dim=2)
        scale = (shape.nope + shape.rope) ** -0.5
        o = attention(q.view(n, heads, -1), k, v, batch.starts, scale)
        return self._linear(fused.gated(o.flatten(1), gate), own["o_proj"])

    def _mlp(self, x, own) -> torch.Tensor:
        gate_up = self._linear(x, torch.cat((own["gate_proj"], own["up_proj"])))
        return self._linear(self._situ(gate_up), own["down_proj"])

    def _situ(self, gate_up: torch.Tensor) -> torch.Tensor:
        return fused.situ(gate_up, self.shape.situ_beta, self.shape.situ_linear_beta)

    def _moe(self, x, own, loads) -> torch.Tensor:
        shape = self.shape
        names = ("shared_experts.gate_proj", "shared_experts.up_proj", "routed_expert_down_proj", "gate")
        together = self._linear(x, torch.cat([own[name] for name in names]))
        inner = 2 * shape.shared * shape.expert_inter
        gate_up, latent, router = together.split((inner, shape.latent, shape.experts), dim=1)
        scores = torch.sigmoid(router)
        with torch.no_grad():
            chosen = torch.topk(scores + own["gate.e_score_correction_bias"], shape.top_k, dim=1).indices
            if loads is not None:
                loads.append(torch.bincount(chosen.flatten(), minlength=shape.experts))
        weight = scores.gather(1, chosen)
        weight = weight / (weight.sum(1, keepdim=True) + 1e-20)
        w1, w2, w3 = own["experts.w1"], own["experts.w2"], own["experts.w3"]
        r = grouped_experts(latent, chosen, weight, w1, w2, w3, self._situ)
        routed = self._linear(
            fused.rms(r, own["routed_expert_norm"], shape.eps), own["routed_expert_up_proj"]
        )
        return routed + self._linear(self._situ(gate_up), own["shared_experts.down_proj"])


def _linear_bf16(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(x.bfloat16(), weight.bfloat16()).float()


class _Scope:
    """The weights whose names begin with a prefix, by the rest of the name."""

    def __init__(self, weights: dict[str, torch.Tensor], prefix: str) -> None:
        self._weights = weights
        self._prefix = prefix

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._weights[self._prefix + name]

    def into(self, name: str) -> _Scope:
        return _Scope(self._weights, self._prefix + name)
