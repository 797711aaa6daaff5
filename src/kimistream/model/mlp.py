"""The gated feed-forward block of a dense layer and of the shared experts (ARCHITECTURE section 7).

Knows: down(act(gate x, up x)).
Does not know: which layer it stands in.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.config import ModelConfig
from kimistream.kernels.formats import Activation
from kimistream.kernels.glu import glu
from kimistream.kernels.matrix import split_rows
from kimistream.model.dense import Dense
from kimistream.model.order import Matrix
from kimistream.model.workspace import Workspace

Floats = npt.NDArray[np.float32]


def activation_of(config: ModelConfig) -> tuple[Activation, float, float]:
    """The activation and its two constants (0 where it has none)."""
    if config.activation == "silu":
        return Activation.SILU, 0.0, 0.0
    return Activation.SITU, config.situ_beta, config.situ_linear_beta


def mlp_block(
    config: ModelConfig,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    dense: Dense,
    ws: Workspace,
    phase: str,
) -> Floats:
    """The block's output `[T, hidden]` for x in the workspace."""
    x, g, u = ws("stream", "x"), ws(phase, "mlp_gate"), ws(phase, "mlp_up")
    dense(gate, x, g)
    dense(up, x, u)
    kind, beta, linear_beta = activation_of(config)
    glu(kind, g, u, beta, linear_beta, g)
    split_rows(g, ws(phase, "mlp_split"))
    return dense(down, ws(phase, "mlp_split"), ws("stream", "sub"))
