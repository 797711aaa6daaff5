"""How large everything is: from a checkpoint and a request to what the plan needs to know.

Knows: bytes per row, per position, per sequence, and what this process holds already.
Does not know: how memory is shared out (stream.plan).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kimistream.budget import current_rss, release_freed
from kimistream.checkpoint.pack import Pack
from kimistream.checkpoint.table import Checkpoint
from kimistream.engine.session import snapshot_bytes
from kimistream.model.order import Score, tape_score
from kimistream.model.state import state_bytes
from kimistream.model.vectors import vectors_bytes
from kimistream.model.workspace import workspace_bytes
from kimistream.stream.blocks import Blocks
from kimistream.stream.expert_runs import slot_bytes
from kimistream.stream.plan import Needs, Plan, block_bytes_for, least_budget

DEFAULT_ROWS = 256
"""Rows of a prompt's pass when nothing is known of the prompt."""
_STEP = 8 << 20
_SLACK = 12 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """What a run asks for; see `Model.open`."""

    context: int
    chunk: int | None = None
    prompt: int | None = None
    all_logits: bool = False
    sequences: int = 1
    snapshots: int = 0
    """Earlier positions of a sequence that stay within reach."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Overrides of what the plan and the reader choose: for measurements and tests.

    None means: as planned. Bytes and counts.
    """

    block_bytes: int | None = None
    ring: int | None = None
    slots: int | None = None
    pin: bool = True
    request_bytes: int | None = None
    reader_threads: int | None = None
    direct: bool = True


@dataclass(frozen=True, slots=True)
class Sized:
    """A request sized up: the tape cut into blocks, and the needs for the plan."""

    score: Score
    blocks: Blocks
    needs: Needs
    tuning: Tuning

    def tuned(self, plan: Plan) -> Plan:
        """The plan with the overrides."""
        t = self.tuning
        if not t.pin:
            capacity = int(self.blocks.spans.max())
            plan = replace(plan, pinned=(), pinned_bytes=0, ring=max(plan.ring, 2), capacity=capacity)
        if t.ring is not None and plan.ring:
            plan = replace(plan, ring=t.ring)
        if t.slots is not None:
            plan = replace(plan, slots=max(1, min(t.slots, self.needs.experts)))
        return plan

    @property
    def reader_options(self) -> dict[str, Any]:
        """Keyword arguments for the reader."""
        options: dict[str, Any] = {"direct": self.tuning.direct}
        if self.tuning.request_bytes is not None:
            options["request_bytes"] = self.tuning.request_bytes
        if self.tuning.reader_threads is not None:
            options["threads"] = self.tuning.reader_threads
        return options


def runtime_bytes() -> int:
    """What the interpreter, the libraries, the kernels and the open checkpoint hold, with a little air.

    Rounded up coarsely, so that the least budget told by one run is accepted by the next. What a model that was open
    before has left behind is not counted: the C library gives it back first.
    """
    release_freed()
    return -(-(current_rss() + _SLACK) // _STEP) * _STEP


def size_up(
    checkpoint: Checkpoint, request: Request, budget: int, tuning: Tuning, pack: Pack | None = None
) -> Sized:
    """Work out the needs of a request. `budget` only decides how finely the tape is cut.

    pack: where the dense weights come from instead of the shards.
    """
    config = checkpoint.config
    score = tape_score(checkpoint, pack)
    tape_bytes = sum(item.nbytes for item in score.items)
    per_sequence = state_bytes(config, 0)
    latents = state_bytes(config, request.context) - per_sequence
    held = runtime_bytes()
    logits_row = 4 * config.vocab_size
    snapshots = request.snapshots * snapshot_bytes(config)
    fixed = held + vectors_bytes(config) + request.sequences * (per_sequence + latents) + snapshots
    block_bytes = tuning.block_bytes or block_bytes_for(tape_bytes, budget - fixed)
    tables = [checkpoint.experts(layer) for layer in config.moe_layers]
    row_bytes = workspace_bytes(config, 2) - workspace_bytes(config, 1)
    if request.all_logits:
        row_bytes += 2 * logits_row
    want = request.chunk or min(request.prompt or DEFAULT_ROWS, DEFAULT_ROWS)
    needs = Needs(
        runtime=held,
        table=0,
        vectors=vectors_bytes(config),
        states=request.sequences * per_sequence,
        latents=request.sequences * latents,
        # this pass's, the one before, and the sampler's copy
        logits=3 * max(1, request.sequences) * logits_row,
        row_bytes=row_bytes,
        spans=(),
        slot_bytes=max((slot_bytes(table) for table in tables), default=0),
        experts=sum(len(table.offsets) for table in tables),
        least_rows=request.chunk or max(1, request.sequences),
        want_rows=max(want, request.sequences),
        fixed=(
            ("snapshots", snapshots),
            ("workspace", workspace_bytes(config, 1) - row_bytes if not request.all_logits else 0),
        ),
    )

    def cut(block_bytes: int) -> Sized:
        blocks = Blocks(score.items, block_bytes, head_start=score.head.index)
        return Sized(score, blocks, replace(needs, spans=blocks.spans), tuning)

    sized = cut(block_bytes)
    if tuning.block_bytes is None and budget < least_budget(sized.needs):
        # large blocks, for a tape that is all resident, would ask for more than the least that is told
        sized = cut(block_bytes_for(tape_bytes))
    return sized
