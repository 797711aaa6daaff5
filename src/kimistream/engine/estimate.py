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
    """
    chosen = len(config.moe_layers) * config.moe.top_k if config.moe_layers else 0
    all_experts = max(plan.needs.experts, 1)
    kept = plan.cache_slots / all_experts
    tape_bytes = plan.tape_bytes
    expert_bytes = round(chosen * plan.needs.slot_bytes * (1 - kept))
    if disk_rate and tape_rate:
        reading = max(tape_bytes / tape_rate, expert_bytes / disk_rate) / DISK_SHARE
    else:
        reading = (tape_bytes + expert_bytes) / (DISK_SHARE * disk_rate) if disk_rate else 0.0
    used = weight_bytes(config, plan)
    share = PACKED_SHARE if packed else MEMORY_SHARE
    computing = used / (share * memory_rate) if memory_rate else 0.0
    return Estimate(tape_bytes, expert_bytes, used, max(reading, computing))
