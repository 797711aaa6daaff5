from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimistream.budget import parse_size
from kimistream.errors import BudgetError
from kimistream.stream.defaults import EXPERT_SLOTS, RING_BLOCKS
from kimistream.stream.plan import Needs, block_bytes_for, least_budget, make_plan, spread, spread_within

MB = 1 << 20


@st.composite
def needs(draw: st.DrawFn) -> Needs:
    blocks = draw(st.integers(1, 60))
    largest = draw(st.sampled_from([4096, 65536, MB]))
    spans = [draw(st.integers(1, largest // 4096)) * 4096 for _ in range(blocks)]
    return Needs(
        runtime=draw(st.integers(0, 300 * MB)),
        table=draw(st.integers(0, MB)),
        vectors=draw(st.integers(0, MB)),
        states=draw(st.integers(0, MB)),
        latents=draw(st.integers(0, MB)),
        logits=draw(st.integers(0, MB)),
        row_bytes=draw(st.sampled_from([0, 1000, 3 * MB])),
        spans=spans,
        slot_bytes=draw(st.sampled_from([20_480, 2 * MB])),
        experts=draw(st.sampled_from([0, 1, 5, 400])),
        want_rows=draw(st.integers(1, 40)),
        fixed=(("sampler", draw(st.integers(0, MB))),),
    )


@settings(max_examples=200, deadline=None)
@given(needs(), st.lists(st.integers(0, 1500 * MB), min_size=1, max_size=12))
def test_more_memory_never_gives_less_and_the_parts_add_up_within_the_budget(
    need: Needs, extra: list[int]
) -> None:
    least = least_budget(need)
    before = (0, 0, 0)
    for more in [0, *sorted(extra)]:
        plan = make_plan(need, least + more)
        assert plan.used <= least + more
        assert sum(nbytes for _, nbytes, _ in plan.table()) == plan.used
        assert plan.least == least
        assert plan.resident or plan.ring >= need.least_ring
        assert not (plan.resident and plan.ring)
        assert plan.slots >= min(need.least_slots, need.experts)
        assert plan.slots <= need.experts
        now = (plan.rows, len(plan.pinned), plan.slots)
        assert all(b <= n for b, n in zip(before, now, strict=True))
        before = now


@settings(max_examples=100, deadline=None)
@given(needs())
def test_below_the_least_is_refused_with_both_figures_and_a_size_that_works(need: Needs) -> None:
    least = least_budget(need)
    with pytest.raises(BudgetError) as caught:
        make_plan(need, least - 1)
    assert caught.value.least_bytes == least
    assert f"{least:,} bytes" in caught.value.what
    assert f"{least - 1:,} bytes" in caught.value.what
    make_plan(need, parse_size(caught.value.remedy.split("--memory ")[1].split("`")[0]))


def example(**changes: int) -> Needs:
    values = {"runtime": 250 * MB, "table": 0, "vectors": 0, "states": 0, "latents": 0, "logits": 0}
    return Needs(
        **{**values, **changes},
        row_bytes=MB,
        spans=[8 * MB] * 100,
        slot_bytes=17 * MB,
        experts=1000,
        want_rows=32,
        least_slots=2,
        least_ring=3,
    )


def test_no_budget_gets_a_ring_or_slots_that_starve_the_disk() -> None:
    need = Needs(
        runtime=0,
        table=0,
        vectors=0,
        states=0,
        latents=0,
        logits=0,
        row_bytes=MB,
        spans=[8 * MB] * 100,
        slot_bytes=17 * MB,
        experts=1000,
    )
    plan = make_plan(need, least_budget(need))
    assert (plan.ring, plan.slots) == (RING_BLOCKS, EXPERT_SLOTS)


def test_memory_goes_to_rows_then_slots_then_ring_then_pinned_blocks_then_the_cache() -> None:
    need = example()
    seen = []
    for budget in range(least_budget(need), 3000 * MB, 4 * MB):
        plan = make_plan(need, budget)
        seen.append((plan.rows, plan.slots, plan.ring, len(plan.pinned), plan.cache_slots))
    assert all(slots == 2 for rows, slots, *_ in seen if rows < 32)
    assert all(ring == 3 for _, slots, ring, *_ in seen if slots < need.want_slots)
    assert all(pinned == 0 for _, _, ring, pinned, _ in seen if 0 < ring < need.want_ring)
    assert all(cache == 0 for *_, pinned, cache in seen if pinned < 100)
    assert seen[-1][2:4] == (0, 100)
    assert seen[-1][4] > 50


def test_guesses_only_take_cache_slots() -> None:
    need = replace(example(), guesses=16)
    assert make_plan(need, 1000 * MB).guesses == 0
    rich = make_plan(need, 3000 * MB)
    assert 0 < rich.guesses <= 16
    assert rich.guesses <= rich.cache_slots // 2
    assert make_plan(need, 40_000 * MB).guesses == 0  # every expert is in memory


@given(st.integers(1, 300), st.data())
def test_pinned_blocks_are_spread_evenly(count: int, data: st.DataObject) -> None:
    chosen = data.draw(st.integers(0, count))
    picked = spread(count, chosen)
    assert len(picked) == chosen
    if chosen:
        gaps = np.diff(np.concatenate([[-1], picked, [count]]))
        assert gaps[:-1].max() - gaps[:-1].min() <= 1
        assert gaps[:-1].max() <= -(-count // chosen)


def test_as_many_blocks_are_pinned_as_fit() -> None:
    spans = np.array([4096, 8192] * 50, dtype=np.int64)
    assert spread_within(spans, 4095) == ()
    assert len(spread_within(spans, 10**9)) == 100
    half = spread_within(spans, 50 * 6144)
    assert 45 <= len(half) <= 50
    assert spans[list(half)].sum() <= 50 * 6144


def test_a_small_tape_still_has_many_blocks_and_a_resident_one_large_blocks() -> None:
    assert block_bytes_for(64 << 30) == 8 * MB
    assert block_bytes_for(64 * 8192) == 8192
    assert block_bytes_for(1000) == 4096
    assert block_bytes_for(64 << 30, spare=66 << 30) > 8 * MB
