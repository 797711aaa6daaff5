"""Kimi Delta Attention: one layer over the rows of a pass (ARCHITECTURE section 5).

Knows: the order of the steps.
Does not know: how a recurrence or a norm is computed (kernels).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.config import ModelConfig
from kimistream.kernels.conv import short_conv
from kimistream.kernels.kda import kda_decay, kda_qk_norm, kda_recurrence
from kimistream.kernels.matrix import split_rows
from kimistream.kernels.norm import gated_head_norm
from kimistream.model.dense import Dense
from kimistream.model.order import Matrix
from kimistream.model.rows import Placed
from kimistream.model.workspace import Workspace

Floats = npt.NDArray[np.float32]


def kda_layer(
    config: ModelConfig,
    matrices: dict[str, Matrix],
    vectors: dict[str, Floats],
    nth: int,
    dense: Dense,
    ws: Workspace,
    placed: list[Placed],
) -> Floats:
    """The attention output `[T, hidden]` of the `nth` KDA layer, for x in the workspace.

    Moves every sequence's state and convolution tails forward by its rows.
    """
    kda = config.kda
    x, low, low_split = ws("stream", "x"), ws("kda", "low"), ws("kda", "low_split")
    raw, decay, gate = ws("kda", "raw"), ws("kda", "decay"), ws("kda", "gate")

    beta = dense(matrices["b_proj"], x, ws("kda", "beta"))

    split_rows(dense(matrices["f_a_proj"], x, low), low_split)
    dense(matrices["f_b_proj"], low_split, decay)
    bound = math.nan if kda.gate_lower_bound is None else kda.gate_lower_bound
    kda_decay(decay, vectors["dt_bias"], vectors["A_log"], bound, decay)

    if kda.full_rank_gate:
        dense(matrices["g_proj"], x, gate)
    else:
        split_rows(dense(matrices["g_a_proj"], x, low), low_split)
        dense(matrices["g_b_proj"], low_split, gate)

    for which, role in ((1, "k"), (0, "q"), (2, "v")):
        dense(matrices[f"{role}_proj"], x, raw)
        for p in placed:
            taps = vectors[f"{role}_conv1d"].reshape(-1, kda.conv_kernel)
            short_conv(raw[p.rows], taps, p.state.tails[nth, which], ws("kda", role)[p.rows])
    q, k, v = ws("kda", "q"), ws("kda", "k"), ws("kda", "v")
    kda_qk_norm(q, k, kda.num_heads, kda.head_dim)

    out = raw
    for p in placed:
        r = p.rows
        kda_recurrence(q[r], k[r], v[r], decay[r], beta[r], p.state.kda[nth], out[r])
    gated_head_norm(out, vectors["o_norm"], config.rms_norm_eps, gate, v)
    split_rows(v, ws("kda", "split"))
    return dense(matrices["o_proj"], ws("kda", "split"), ws("stream", "sub"))
