"""`kimistream plan`: where every byte goes, the least budget, and what more memory would buy.

Knows: how to print a plan.
Does not know: how it is worked out (stream.plan) or what a token costs (engine.estimate).
"""

from __future__ import annotations

import json as jsonlib
from typing import Annotated, Any

from cyclopts import Parameter

from kimistream.budget import format_size
from kimistream.cli.options import Also, FilePath, Whole, also_paths, at_least, checkpoint_path
from kimistream.errors import BudgetError

LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256)
"""Budgets of the table, in GB, as far as this checkpoint can use them."""


def plan(
    checkpoint: str,
    /,
    *,
    pack: FilePath | None = None,
    memory: str | None = None,
    context: Whole = 4096,
    prompt_tokens: Whole | None = None,
    chunk: Whole | None = None,
    snapshots: Whole = 0,
    measure: bool = True,
    also: Also = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Print where every byte of a memory budget goes, and what other budgets would give.

    Parameters
    ----------
    checkpoint
        A directory in Kimi K3's layout, or `demo`.
    pack
        Plan with this pack of the checkpoint, as `run --pack` would use it.
    memory
        The budget for the whole process, as 8GB. By default what is free, minus a reserve.
    context
        Positions of a sequence, prompt and answer together.
    prompt_tokens
        The length of the prompt, for the size of its passes.
    chunk
        Prompt tokens in one pass.
    snapshots
        Earlier positions of a conversation within reach; `chat` keeps one.
    measure
        Measure this disk and this memory for a second or two, to tell seconds.
    also
        A further directory, of another drive perhaps, that holds shards of the checkpoint; may be given again.
    json
        One JSON object on stdout.
    """
    at_least("--context", context, 1)
    at_least("--prompt-tokens", prompt_tokens, 1)
    at_least("--chunk", chunk, 1)
    at_least("--snapshots", snapshots, 0)
    path = checkpoint_path(checkpoint)

    from kimistream.checkpoint.table import Checkpoint
    from kimistream.engine.estimate import Estimate, estimate
    from kimistream.engine.model import open_pack, prepare_kernels, resolve_budget
    from kimistream.engine.rates import disk_rate, memory_rate, other_drive_rate
    from kimistream.engine.session import snapshot_bytes
    from kimistream.engine.sizes import Request, Tuning, size_up
    from kimistream.model.state import state_bytes
    from kimistream.stream.plan import Plan, least_budget, make_plan

    opened = Checkpoint.open(path, also_paths(also))
    packed = open_pack(pack, opened)
    budget, source = resolve_budget(memory)
    prepare_kernels(budget=budget)
    request = Request(context, chunk, prompt_tokens, snapshots=snapshots)
    read, compute = (disk_rate(opened), memory_rate()) if measure else (0.0, 0.0)
    apart = other_drive_rate(opened, packed.path) if measure and packed is not None else 0.0

    def planned(nbytes: int) -> Plan:
        return make_plan(size_up(opened, request, nbytes, Tuning(), packed).needs, nbytes)

    def expected(plan: Plan) -> Estimate:
        return estimate(opened.config, plan, read, compute, packed=packed is not None, tape_rate=apart)

    chosen = planned(budget)
    least = least_budget(size_up(opened, request, 0, Tuning(), packed).needs)
    ladder = []
    for nbytes in [least, *(gb * 10**9 for gb in LADDER)]:
        try:
            step = planned(nbytes)
        except BudgetError:
            continue
        ladder.append((nbytes, step, expected(step)))
        if step.slots >= step.needs.experts:
            break
    now = expected(chosen)
    session = state_bytes(opened.config, context) + snapshots * snapshot_bytes(opened.config)
    if json:
        fields: dict[str, Any] = {
            "budget_bytes": budget,
            "budget_source": source,
            "least_bytes": least,
            "session_bytes": session,
            "parts": [{"part": part, "bytes": n, "remark": remark} for part, n, remark in chosen.table()],
            "pack_bytes": packed.size if packed is not None else None,
            "disk_bytes_per_second": read,
            "pack_disk_bytes_per_second": apart or None,
            "memory_bytes_per_second": compute,
            "expected_bytes_per_token": now.disk_bytes,
            "expected_seconds_per_token": now.seconds,
            "budgets": [
                {
                    "budget_bytes": nbytes,
                    "pinned_share": share(step),
                    "bytes_per_token": cost.disk_bytes,
                    "seconds_per_token": cost.seconds,
                }
                for nbytes, step, cost in ladder
            ],
        }
        print(jsonlib.dumps(fields))
        return

    print(f"{path}: {format_size(budget)} ({source}); the least is {format_size(least)}")
    if packed is not None:
        print(f"with the pack {packed.path}, {format_size(packed.size)}")
    print()
    for part, nbytes, remark in chosen.table():
        print(f"  {part:<14} {format_size(nbytes):>9}  {remark}")
    print(f"  {'in all':<14} {format_size(chosen.used):>9}")
    print(f"a saved session of {context} positions takes {format_size(session)}")
    if measure:
        both = f" and {format_size(apart)}/s of the pack's own drive at once" if apart else ""
        print(f"\ndisk {format_size(read)}/s{both} (direct reads), memory {format_size(compute)}/s")
    print(
        "\n  memory     dense weights kept  experts kept  read per token" + ("  s/token" if measure else "")
    )
    for nbytes, step, cost in ladder:
        seconds = f"  {cost.seconds:7.2f}" if measure else ""
        kept = 100 * step.cache_slots / max(step.needs.experts, 1)
        print(
            f"  {format_size(nbytes):<10} {100 * share(step):16.0f} %  {kept:10.1f} %  "
            f"{format_size(cost.disk_bytes):>14}{seconds}"
        )


def share(plan: Any) -> float:
    """The share of the tape that is pinned, 0 to 1."""
    whole = plan.pinned_bytes + plan.tape_bytes
    return plan.pinned_bytes / whole if whole else 0.0
