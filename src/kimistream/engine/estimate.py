"""What a token will cost under a plan: bytes from disk, bytes from memory, seconds.

Knows: which bytes a decode step touches, and two measured rates.
Does not know: how the rates were measured, or how the figures are shown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kimistream.checkpoint.config import ModelConfig
from kimistream.stream.plan import Plan

MEMORY_SHARE = 0.75
"""The share of the memory read rate at which a whole decode step uses weights (docs/LEARNED.md)."""

PACKED_SHARE = 0.65
"""The same for a tape of a pack: fewer bytes, each with more work (docs/LEARNED.md)."""

DISK_SHARE = 0.95
"""The share of a plain reader's rate that decode steps reach (docs/LEARNED.md)."""

GUESSED_RIGHT = 0.7
"""The share of the experts read ahead of the router that it then asks for: 0.67 to 0.7 with random weights, 0.75 to
0.86 with trained ones (docs/LEARNED.md); the lower, so that nothing is promised that is not kept."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The expected cost of one decoded token: bytes and seconds."""

    tape_bytes: int
    expert_bytes: int
    weight_bytes: int
    seconds: float

    @property
    def disk_bytes(self) -> int:
        """Bytes read from disk."""
        return self.tape_bytes + self.expert_bytes


def weight_bytes(config: ModelConfig, plan: Plan) -> int:
    """Bytes of memory that one decoded token goes through: weights, and the recurrent states twice."""
    chosen = len(config.moe_layers) * config.moe.top_k if config.moe_layers else 0
    return int(np.sum(plan.needs.spans)) + chosen * plan.needs.slot_bytes + 2 * plan.needs.states


def estimate(
    config: ModelConfig,
    plan: Plan,
    disk_rate: float,
    memory_rate: float,
    *,
    packed: bool = False,
    tape_rate: float = 0.0,
) -> Estimate:
    """The expected cost under a plan, with all rates in bytes per second.

    packed: the plan is one with a pack. tape_rate: of the drive with the pack, when the experts are on
    another one: both are read at once.
    Without an expert cache every chosen expert is read. With one, the share of it that is resident is
    taken as its hit rate, which real routing, being uneven, does better than.

    Where the tape leaves the disk no time of its own, reading decides. Else computing does, and on top of it the
    waits: a layer's experts are known only when its router has spoken, and what they take longer than the matrices
    beside them is waited for, less what was guessed right and read while the layer before was computed.
    """
    chosen = len(config.moe_layers) * config.moe.top_k if config.moe_layers else 0
    all_experts = max(plan.needs.experts, 1)
    kept = plan.cache_slots / all_experts if plan.slots < all_experts else 1.0
    tape_bytes = plan.tape_bytes
    expert_bytes = round(chosen * plan.needs.slot_bytes * (1 - kept))
    if disk_rate and tape_rate:
        reading = max(tape_bytes / tape_rate, expert_bytes / disk_rate) / DISK_SHARE
    else:
        reading = (tape_bytes + expert_bytes) / (DISK_SHARE * disk_rate) if disk_rate else 0.0
    used = weight_bytes(config, plan)
    share = PACKED_SHARE if packed else MEMORY_SHARE
    computing = used / (share * memory_rate) if memory_rate else 0.0
    waits = 0.0
    if expert_bytes and disk_rate and memory_rate:
        beside = beside_bytes(config) / (share * memory_rate)
        layer = computing / config.num_layers
        ahead = min(max(layer - beside, 0.0), plan.guesses * plan.needs.slot_bytes / (DISK_SHARE * disk_rate))
        experts = expert_bytes / len(config.moe_layers) / (DISK_SHARE * disk_rate)
        waits = len(config.moe_layers) * max(0.0, experts - beside - GUESSED_RIGHT * ahead)
    return Estimate(tape_bytes, expert_bytes, used, max(reading, computing + waits))


def beside_bytes(config: ModelConfig) -> int:
    """Bytes of a layer's matrices that are computed between the router's choice and the experts' work.

    The shared experts and the way into the latent space, 2 bytes a number.
    """
    moe = config.moe
    shared = 3 * moe.num_shared_experts * moe.intermediate_size * config.hidden_size
    return 2 * (shared + (moe.latent_size or 0) * config.hidden_size)
