"""One pass: the tape played once over the rows of any number of sequences.

Knows: how layers follow one another, with and without attention residuals (ARCHITECTURE sections 4, 10).
Does not know: which rows come next, or what is done with the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.table import Checkpoint
from kimistream.errors import NumberError, UsageError
from kimistream.kernels.formats import WeightFormat
from kimistream.kernels.matrix import split_rows
from kimistream.kernels.norm import rms_norm
from kimistream.kernels.residual import add, residual_mix
from kimistream.model.dense import Dense
from kimistream.model.embedding import Embedding
from kimistream.model.foresight import Foresight
from kimistream.model.kda import kda_layer
from kimistream.model.mla import mla_layer
from kimistream.model.mlp import mlp_block
from kimistream.model.moe import moe_layer
from kimistream.model.order import Score
from kimistream.model.rows import Placed, Run, place, wanted_rows
from kimistream.model.vectors import Vectors
from kimistream.model.workspace import Workspace
from kimistream.stream.expert_store import ExpertStore
from kimistream.stream.tape import Tape

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Progress = Callable[[int, int], None]
"""Called as (layer, layers) when a layer begins, and as (layers, layers) when the head does."""


@dataclass(slots=True)
class Taps:
    """What a pass may record beside its logits, for tests and for people who study the model.

    Each list has one float32 `[T, hidden]` array per layer; routed has int32 `[T, k]` per MoE layer.
    """

    attn_out: list[Floats] = field(default_factory=list)
    ffn_out: list[Floats] = field(default_factory=list)
    layer_out: list[Floats] = field(default_factory=list)
    routed: list[Ints] = field(default_factory=list)
    expert_weights: list[Floats] = field(default_factory=list)
    final: Floats | None = None


class Forward:
    """The model as a function of rows; owns nothing that outlives a pass except what it was given."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        score: Score,
        vectors: Vectors,
        expert_format: WeightFormat,
        embedding: Embedding,
        tape: Tape,
        experts: ExpertStore | None,
        workspace: Workspace,
    ) -> None:
        config = self.config = checkpoint.config
        self._score = score
        self._vectors = vectors
        self._expert_format = expert_format
        self._embedding = embedding
        self._tape = tape
        self._experts = experts
        self._ws = workspace
        self._dense = Dense(tape, checkpoint)
        self._foresight = None
        if experts is not None and experts.guesses:
            self._foresight = Foresight(config, score, vectors, tape, experts, workspace)
        kinds = config.layer_kinds
        self._nth = [kinds[:i].count(kinds[i]) for i in range(config.num_layers)]

    def run(
        self,
        runs: list[Run],
        *,
        more: bool = False,
        progress: Progress | None = None,
        taps: Taps | None = None,
    ) -> Floats:
        """Move every run's sequence forward by its ids; float32 logits `[wanted rows, vocab]`.

        more: another pass follows, so the disk may read ahead into it. Raises NumberError rather than
        return logits that are not finite. When it raises, the sequences of the runs are void: their
        states may have moved for some layers and not for others.
        """
        config, ws = self.config, self._ws
        placed = place(runs)
        rows = placed[-1].row1
        if rows > ws.max_rows:
            raise UsageError(
                f"a pass of {rows} rows was asked for, but it was planned for {ws.max_rows}",
                "Split it, or open the model with a larger chunk.",
            )
        for run in runs:
            run.state.room_for(len(run.ids))
        wanted = wanted_rows(placed)
        ws.resize(rows)
        self._tape.begin(head=len(wanted) > 0, more=more)
        s = ws("stream", "s")
        self._embedding.gather(np.concatenate([run.ids for run in runs]), s)
        count = 0
        for layer in range(config.num_layers):
            if progress is not None:
                progress(layer, config.num_layers)
            count = self._layer(layer, placed, count, taps)
        for p in placed:
            p.state.position += p.row1 - p.row0
        if progress is not None:
            progress(config.num_layers, config.num_layers)
        logits = self._head(wanted, count, taps)
        self._tape.finish()
        return logits

    def _layer(self, layer: int, placed: list[Placed], count: int, taps: Taps | None) -> int:
        config, ws, vectors = self.config, self._ws, self._vectors.layers[layer]
        s, stack, sub = ws("stream", "s"), ws("stream", "stack"), ws("stream", "sub")
        block = config.attn_res_block_size
        fresh = False

        h = s
        if block and count:
            h = self._mix(count, vectors["self_attention_res_norm"], vectors["self_attention_res_proj"])
        if block and layer % block == 0:
            np.copyto(stack[count], s)
            count, fresh = count + 1, True
        self._norm(h, vectors["input_layernorm"])
        self._attention(layer, placed)
        if taps:
            taps.attn_out.append(sub.copy())
        if fresh:
            np.copyto(s, sub)
        else:
            add(s, sub)

        h = s
        if block:
            h = self._mix(count, vectors["mlp_res_norm"], vectors["mlp_res_proj"])
        self._norm(h, vectors["post_attention_layernorm"])
        self._feed_forward(layer, count, taps)
        if taps:
            taps.ffn_out.append(sub.copy())
        add(s, sub)
        if taps:
            taps.layer_out.append(s.copy())
        return count

    def _mix(self, count: int, norm: Floats, proj: Floats) -> Floats:
        ws, eps = self._ws, self.config.rms_norm_eps
        h = ws("stream", "h")
        residual_mix(ws("stream", "stack"), count, ws("stream", "s"), norm, proj, eps, h)
        return h

    def _norm(self, h: Floats, weight: Floats) -> None:
        ws = self._ws
        normed = ws("stream", "normed")
        rms_norm(h, weight, self.config.rms_norm_eps, normed)
        split_rows(normed, ws("stream", "x"))

    def _attention(self, layer: int, placed: list[Placed]) -> None:
        matrices, vectors = self._score.layers[layer], self._vectors.layers[layer]
        nth, dense, ws = self._nth[layer], self._dense, self._ws
        if self.config.layer_kinds[layer] == "kda":
            kda_layer(self.config, matrices, vectors, nth, dense, ws, placed)
        else:
            mla_layer(self.config, matrices, vectors, nth, dense, ws, placed)

    def _feed_forward(self, layer: int, count: int, taps: Taps | None) -> None:
        config, ws = self.config, self._ws
        matrices, vectors = self._score.layers[layer], self._vectors.layers[layer]
        if config.ffn_kinds[layer] == "dense":
            gate, up, down = (matrices[f"{role}_proj"] for role in ("gate", "up", "down"))
            mlp_block(config, gate, up, down, self._dense, ws, "mlp")
            return
        if self._experts is None:
            raise RuntimeError(f"layer {layer} has experts, but the pass was given no store")
        routed = np.empty((len(ws("stream", "s")), config.moe.top_k), np.int32)
        foresight = self._foresight
        moe_layer(
            config,
            layer,
            matrices,
            vectors,
            self._expert_format,
            self._dense,
            self._experts,
            ws,
            routed,
            ahead=None if foresight is None else lambda: foresight.read_ahead(layer, count),
        )
        if taps:
            taps.routed.append(routed)
            taps.expert_weights.append(ws("moe", "expert_weights").copy())

    def _head(self, wanted: npt.NDArray[np.int64], count: int, taps: Taps | None) -> Floats:
        config, ws, final = self.config, self._ws, self._vectors.final
        if not len(wanted):
            return np.empty((0, config.vocab_size), np.float32)
        h = ws("stream", "s")
        if config.attn_res_block_size:
            h = self._mix(count, final["output_attn_res_norm"], final["output_attn_res_proj"])
        normed = ws("stream", "normed")
        rms_norm(h, final["norm"], config.rms_norm_eps, normed)
        if taps:
            taps.final = normed.copy()
        chosen = normed[wanted]
        split_rows(chosen, ws("stream", "x")[: len(wanted)])
        logits = np.empty((len(wanted), config.vocab_size), np.float32)
        self._dense(self._score.head, ws("stream", "x")[: len(wanted)], logits)
        if not np.isfinite(logits).all():
            bad = int(np.argwhere(~np.isfinite(logits))[0][1])
            raise NumberError(
                f"the logit of token {bad} is {logits[~np.isfinite(logits)][0]}, although all weights are finite",
                "This is a fault of the program: please report it.",
            )
        return logits
