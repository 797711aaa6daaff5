"""The mixture of experts: one layer over the rows of a pass (ARCHITECTURE section 7).

Knows: how rows choose experts, and that experts are computed as they arrive but added up by id.
Does not know: where an expert's bytes come from, or which of them were already in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.config import ModelConfig
from kimistream.checkpoint.experts import GROUP
from kimistream.checkpoint.names import EXPERT_PARTS, expert_name, expert_shapes
from kimistream.errors import NumberError
from kimistream.kernels.combine import combine
from kimistream.kernels.experts import grouped_experts
from kimistream.kernels.formats import WeightFormat
from kimistream.kernels.matrix import find_nonfinite, split_rows
from kimistream.kernels.norm import rms_norm
from kimistream.kernels.residual import add
from kimistream.kernels.router import route
from kimistream.model.dense import Dense
from kimistream.model.mlp import activation_of, mlp_block
from kimistream.model.order import Matrix
from kimistream.model.workspace import Workspace
from kimistream.stream.expert_store import ExpertStore

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Union:
    """The experts that a pass's rows chose, each once, and who chose them.

    experts: int32 `[n]` ascending; row_start: int32 `[n + 1]`; rows: int32 `[T * k]`, the rows of expert
    i are rows[row_start[i]:row_start[i + 1]]; outs: int32 `[T * k]`, row * k + slot of each.
    """

    experts: Ints
    row_start: Ints
    rows: Ints
    outs: Ints


def union_of(ids: Ints) -> Union:
    """Group a pass's choices `[T, k]` by expert; rows of one expert stay in ascending order."""
    flat = ids.reshape(-1)
    outs = np.argsort(flat, kind="stable").astype(np.int32)
    experts, first = np.unique(flat[outs], return_index=True)
    row_start = np.append(first, len(flat)).astype(np.int32)
    return Union(experts.astype(np.int32), row_start, outs // np.int32(ids.shape[1]), outs)


def choose_experts(config: ModelConfig, logits: Floats, bias: Floats, ids: Ints, weights: Floats) -> None:
    """Fill ids `[T, k]` (ascending) and weights `[T, k]` from the router's logits `[T, experts]`."""
    moe = config.moe
    groups = moe.num_groups, moe.topk_groups
    scaling = moe.renormalize, moe.scaling_factor
    route(logits, bias, moe.top_k, moe.sigmoid, *groups, *scaling, ids, weights)


def moe_layer(
    config: ModelConfig,
    layer: int,
    matrices: dict[str, Matrix],
    vectors: dict[str, Floats],
    expert_format: WeightFormat,
    dense: Dense,
    experts: ExpertStore,
    ws: Workspace,
    routed: Ints,
    ahead: Callable[[], None] | None = None,
) -> Floats:
    """The feed-forward output `[T, hidden]` for x in the workspace; `routed` `[T, k]` receives the ids.

    ahead: called once this layer's certain reads are on their way, to guess at the next layer's.
    """
    moe = config.moe
    x = ws("stream", "x")
    logits, weights = ws("moe", "router"), ws("moe", "expert_weights")
    dense(matrices["router"], x, logits)
    choose_experts(config, logits, vectors["e_score_correction_bias"], routed, weights)
    union = union_of(routed)
    # asked for at once: the reads run while the matrices below are computed
    experts.request(layer, union.experts)
    if ahead is not None:
        ahead()

    if moe.latent_size is not None:
        latent = dense(matrices["routed_expert_down_proj"], x, ws("moe", "latent"))
        split_rows(latent, ws("moe", "latent_split"))
        xs = ws("moe", "latent_split")
    else:
        xs = x
    result = ws("stream", "sub")
    if moe.num_shared_experts:
        gate, up, down = (matrices[f"shared_{role}_proj"] for role in ("gate", "up", "down"))
        mlp_block(config, gate, up, down, dense, ws, "moe")
    else:
        result.fill(0)

    _compute(config, layer, union, experts, expert_format, xs, ws, dense)
    mixture = ws("moe", "mixture")
    combine(ws("moe", "expert_out"), weights, mixture)
    if moe.latent_size is None:
        add(result, mixture)
        return result
    if moe.latent_norm:
        normed = ws("moe", "mixture_normed")
        rms_norm(mixture, vectors["routed_expert_norm"], config.rms_norm_eps, normed)
        mixture = normed
    split_rows(mixture, ws("moe", "mixture_split"))
    add(result, dense(matrices["routed_expert_up_proj"], ws("moe", "mixture_split"), ws("moe", "up")))
    return result


def _compute(
    config: ModelConfig,
    layer: int,
    union: Union,
    experts: ExpertStore,
    fmt: WeightFormat,
    xs: Floats,
    ws: Workspace,
    dense: Dense,
) -> None:
    kind, beta, linear_beta = activation_of(config)
    out, scratch = ws("moe", "expert_out"), ws("moe", "expert_scratch")
    for batch in experts.arrivals():
        addresses = np.array([address for _, address in batch], np.int64)
        spans = [slice(union.row_start[i], union.row_start[i + 1]) for i, _ in batch]
        starts = np.zeros(len(batch) + 1, np.int32)
        np.cumsum([s.stop - s.start for s in spans], out=starts[1:])
        bad = grouped_experts(
            fmt,
            addresses,
            starts,
            np.concatenate([union.rows[s] for s in spans]),
            np.concatenate([union.outs[s] for s in spans]),
            xs,
            config.moe.intermediate_size,
            kind,
            beta,
            linear_beta,
            out,
            scratch,
        )
        if bad >= 0:
            expert = int(union.experts[batch[bad][0]])
            raise _blame(config, layer, expert, batch[bad][1], fmt, dense)


def _blame(
    config: ModelConfig, layer: int, expert: int, addresses: tuple[int, ...], fmt: WeightFormat, dense: Dense
) -> NumberError:
    """Find the tensor of an expert that made a result NaN or infinite."""
    packed = fmt == WeightFormat.MXFP4
    for i, (part, (rows, cols)) in enumerate(zip(EXPERT_PARTS, expert_shapes(config), strict=True)):
        row, col = find_nonfinite(fmt, addresses[2 * i], addresses[2 * i + 1], rows, cols)
        if row >= 0:
            # in MXFP4 only a scale can be bad: code 255 is NaN (ARCHITECTURE section 8)
            name = expert_name(config, layer, expert, part, "weight_scale" if packed else "weight")
            return dense.bad_number(name, row, col // GROUP if packed else col)
    suffix = "weight_packed" if packed else "weight"
    return dense.bad_number(expert_name(config, layer, expert, "w1", suffix), -1, -1)
