"""Reading ahead of the router: the experts that the next layer will probably ask for.

Knows: that a layer's router, applied to the hidden state one layer early, guesses most of its choice.
Does not know: how a guess is read (the expert store reads it when the disk would idle, and drops it when
the router disagrees).

A guess changes when bytes are read and never what is computed: the layer's own router still decides.
It is made only where the next router's matrix is resident, so that it costs no reading of its own.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.config import ModelConfig
from kimistream.kernels.matrix import padded, split_rows
from kimistream.kernels.norm import rms_norm
from kimistream.kernels.residual import residual_mix
from kimistream.model.dense import multiply, rows_of
from kimistream.model.moe import choose_experts
from kimistream.model.order import Score
from kimistream.model.vectors import Vectors
from kimistream.model.workspace import Workspace
from kimistream.stream.expert_store import ExpertStore
from kimistream.stream.tape import Tape

Floats = npt.NDArray[np.float32]

MAX_ROWS = 4
"""Passes of more rows have unions too large to guess well, and keep the disk busy by themselves."""


class Foresight:
    """Guesses the experts of the MoE layer after the one being computed."""

    def __init__(
        self,
        config: ModelConfig,
        score: Score,
        vectors: Vectors,
        tape: Tape,
        experts: ExpertStore,
        ws: Workspace,
    ) -> None:
        self._config, self._score, self._vectors = config, score, vectors
        self._tape, self._experts, self._ws = tape, experts, ws
        moe = list(config.moe_layers)
        self._next = dict(pairwise(moe))
        rows, hidden = MAX_ROWS, config.hidden_size
        self._h = np.empty((rows, hidden), np.float32)
        self._x = np.empty((rows, padded(hidden)), np.float32)
        self._logits = np.empty((rows, config.moe.num_experts), np.float32)
        self._weights = np.empty((rows, config.moe.top_k), np.float32)
        self._ids = np.empty((rows, config.moe.top_k), np.int32)

    def guess(self, layer: int, stack_count: int) -> npt.NDArray[np.int32] | None:
        """The experts the next MoE layer would choose for the hidden state as it is now, ascending.

        None where its router is not resident, or the pass is too large.
        """
        following = self._next.get(layer)
        s = self._ws("stream", "s")
        rows = len(s)
        if following is None or rows > MAX_ROWS:
            return None
        router = self._score.layers[following]["router"]
        resident = [(run, self._tape.resident(run.index)) for run in router.runs]
        if any(parts is None for _, parts in resident):
            return None
        config, vectors = self._config, self._vectors.layers[following]
        h, x, logits = self._h[:rows], self._x[:rows], self._logits[:rows]
        source = s
        if config.attn_res_block_size:
            norm, proj = vectors["mlp_res_norm"], vectors["mlp_res_proj"]
            stack = self._ws("stream", "stack")
            residual_mix(stack, stack_count, s, norm, proj, config.rms_norm_eps, h)
            source = h
        rms_norm(source, vectors["post_attention_layernorm"], config.rms_norm_eps, h)
        split_rows(h, x)
        for run, parts in resident:
            for part in parts or ():
                multiply(router, rows_of(run, part), x, logits)
        bias = vectors["e_score_correction_bias"]
        choose_experts(config, logits, bias, self._ids[:rows], self._weights[:rows])
        return np.unique(self._ids[:rows])

    def read_ahead(self, layer: int, stack_count: int) -> None:
        """Hand the guess for the layer after `layer` to the expert store."""
        guess = self.guess(layer, stack_count)
        if guess is not None:
            self._experts.hint(self._next[layer], guess)
