"""Gated multi-head latent attention: one layer over the rows of a pass (ARCHITECTURE section 6).

Knows: the order of the steps, and that a sequence keeps one latent per position.
Does not know: how scores are summed (kernels).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.config import ModelConfig
from kimistream.kernels.glu import sigmoid_gate
from kimistream.kernels.matrix import all_finite, split_rows
from kimistream.kernels.mla import mla_attend
from kimistream.kernels.norm import rms_norm
from kimistream.model.dense import Dense
from kimistream.model.order import Matrix
from kimistream.model.rows import Placed
from kimistream.model.workspace import Workspace

Floats = npt.NDArray[np.float32]

LATENT_EPS = 1e-6
"""eps of q_a_layernorm and kv_a_layernorm; every other norm takes the config's (ARCHITECTURE section 3)."""


def mla_layer(
    config: ModelConfig,
    matrices: dict[str, Matrix],
    vectors: dict[str, Floats],
    nth: int,
    dense: Dense,
    ws: Workspace,
    placed: list[Placed],
) -> Floats:
    """The attention output `[T, hidden]` of the `nth` MLA layer; stores each row's latent."""
    mla = config.mla
    rank = mla.kv_lora_rank
    x, q, out = ws("stream", "x"), ws("mla", "q"), ws("mla", "out")
    if mla.output_gate:
        dense(matrices["g_proj"], x, ws("mla", "gate"))

    latent = dense(matrices["kv_a_proj_with_mqa"], x, ws("mla", "latent"))
    for p in placed:
        at = p.state.position
        stored = p.state.latents[nth, at : at + p.row1 - p.row0]
        rms_norm(latent[p.rows, :rank], vectors["kv_a_layernorm"], LATENT_EPS, stored[:, :rank])
        stored[:, rank:] = latent[p.rows, rank:]

    if mla.q_lora_rank is None:
        dense(matrices["q_proj"], x, q)
    else:
        low = dense(matrices["q_a_proj"], x, ws("mla", "q_low"))
        rms_norm(low, vectors["q_a_layernorm"], LATENT_EPS, ws("mla", "q_normed"))
        split_rows(ws("mla", "q_normed"), ws("mla", "q_split"))
        dense(matrices["q_b_proj"], ws("mla", "q_split"), q)

    kv_b = matrices["kv_b_proj"]
    per_head = mla.nope_head_dim + mla.v_head_dim
    for rows in dense.rows(kv_b):  # whole heads at a time
        for p in placed:
            mla_attend(
                kv_b.format,
                rows.address,
                rows.row0 // per_head,
                rows.row1 // per_head,
                mla.nope_head_dim,
                mla.rope_head_dim,
                mla.v_head_dim,
                rank,
                q[p.rows],
                p.state.latents[nth],
                p.state.position,
                out[p.rows],
                form=rows.form,
            )
        first, last = rows.row0 // per_head * mla.v_head_dim, rows.row1 // per_head * mla.v_head_dim
        if not all_finite(out, first, last):
            raise dense.trace(kv_b, rows)
    if mla.output_gate:
        sigmoid_gate(out, ws("mla", "gate"), out)
    split_rows(out, ws("mla", "split"))
    return dense(matrices["o_proj"], ws("mla", "split"), ws("stream", "sub"))
