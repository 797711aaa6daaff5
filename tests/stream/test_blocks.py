from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimistream.stream.blocks import Blocks, TapeItem

A = 4096


@st.composite
def tapes(draw: st.DrawFn) -> tuple[list[TapeItem], int | None]:
    """Items in file order with and without gaps, in two files; where the head starts."""
    ends = [draw(st.integers(0, 5000)), 0]
    items = []
    for i in range(draw(st.integers(1, 12))):
        file = draw(st.sampled_from([0, 0, 0, 1]))
        offset = ends[file] + draw(st.sampled_from([0, 0, 1, 700, 9000]))
        rows, row_bytes = draw(st.integers(1, 90)), draw(st.integers(1, 700))
        items.append(TapeItem(f"item{i}", file, offset, rows, row_bytes, draw(st.integers(1, 20))))
        ends[file] = offset + rows * row_bytes
    head = draw(st.one_of(st.none(), st.integers(0, len(items) - 1)))
    return items, head


def walk(blocks: Blocks) -> Sequence[tuple[int, int, int, int, int]]:
    """(block, item, row0, row1, offset in the block) in tape order."""
    return [
        (b, *map(int, blocks.parts[i]))
        for b in range(len(blocks))
        for i in range(int(blocks.part_start[b]), int(blocks.part_start[b + 1]))
    ]


@settings(max_examples=150, deadline=None)
@given(tapes(), st.sampled_from([4096, 8192, 16384, 65536, 1 << 20]))
def test_every_row_is_on_the_tape_once_in_order_and_where_its_bytes_are_read_to(
    tape: tuple[list[TapeItem], int | None], block_bytes: int
) -> None:
    items, head = tape
    blocks = Blocks(items, block_bytes, head_start=head)
    at, row = 0, 0
    for block, item, row0, row1, offset in walk(blocks):
        if row == items[at].rows:
            at, row = at + 1, 0
        assert (item, row0) == (at, row)
        assert row0 < row1
        assert row1 == items[at].rows or row1 % items[at].granule == 0
        row = row1
        # some extent of the block reads exactly these bytes to exactly this place
        first = items[at].offset + row0 * items[at].row_bytes
        nbytes = (row1 - row0) * items[at].row_bytes
        extents = blocks.extents[blocks.extent_start[block] : blocks.extent_start[block + 1]]
        assert any(
            file == items[at].file
            and start <= first
            and first + nbytes <= start + need
            and place + first - start == offset
            for file, start, need, place in extents.tolist()
        )
    assert (at, row) == (len(items) - 1, items[-1].rows)
    assert blocks.total_bytes == sum(item.nbytes for item in items)


@settings(max_examples=150, deadline=None)
@given(tapes(), st.sampled_from([4096, 8192, 16384, 65536, 1 << 20]))
def test_blocks_keep_their_size_and_their_extents_do_not_touch(
    tape: tuple[list[TapeItem], int | None], block_bytes: int
) -> None:
    items, head = tape
    blocks = Blocks(items, block_bytes, head_start=head)
    for b in range(len(blocks)):
        place = 0
        for _, start, need, offset in blocks.extents[
            blocks.extent_start[b] : blocks.extent_start[b + 1]
        ].tolist():
            assert start % A == 0
            assert offset == place
            place += -(-need // A) * A
        assert blocks.spans[b] == place
        if place > blocks.block_bytes:  # only a granule that is larger than a block
            parts = blocks.parts[blocks.part_start[b] : blocks.part_start[b + 1]].tolist()
            assert len(parts) == 1
            item, row0, row1, _ = parts[0]
            assert row1 - row0 <= items[item].granule
    assert blocks.capacity == blocks.spans.max()


@settings(max_examples=80, deadline=None)
@given(tapes())
def test_the_head_begins_a_block(tape: tuple[list[TapeItem], int | None]) -> None:
    items, head = tape
    blocks = Blocks(items, 65536, head_start=head)
    owners = [(block, item) for block, item, *_ in walk(blocks)]
    if head is None:
        assert blocks.head_block == len(blocks)
        assert blocks.head_start == len(items)
    else:
        assert all((block >= blocks.head_block) == (item >= head) for block, item in owners)


def test_neighbours_in_the_file_are_one_read() -> None:
    items = [TapeItem("a", 0, 100, 10, 300), TapeItem("b", 0, 3100, 7, 500), TapeItem("c", 0, 6600, 1, 1)]
    blocks = Blocks(items, 1 << 20)
    assert blocks.extents.tolist() == [[0, 0, 6601, 0]]
    assert blocks.parts.tolist() == [[0, 0, 10, 100], [1, 0, 7, 3100], [2, 0, 1, 6600]]


def test_a_gap_or_another_file_is_another_read_in_its_own_area() -> None:
    items = [TapeItem("a", 0, 100, 10, 300), TapeItem("b", 0, 3101, 1, 5000), TapeItem("c", 1, 8101, 1, 1)]
    blocks = Blocks(items, 1 << 20)
    assert blocks.extents.tolist() == [[0, 0, 3100, 0], [0, 0, 8101, 4096], [1, 4096, 4006, 12288]]
    assert blocks.parts.tolist() == [[0, 0, 10, 100], [1, 0, 1, 4096 + 3101], [2, 0, 1, 12288 + 4005]]


def test_no_sliver_of_a_large_item_ends_a_block() -> None:
    blocks = Blocks([TapeItem("a", 0, 0, 1, 62_000), TapeItem("b", 0, 62_000, 100, 1000)], 65536)
    assert walk(blocks)[1][:4] == (1, 1, 0, 64)  # 3 rows would have fitted into block 0


def test_large_items_are_cut_at_multiples_of_sixteen_rows_and_of_the_granule() -> None:
    blocks = Blocks([TapeItem("a", 0, 0, 1000, 1000, 6)], 65536)
    cuts = [row1 for _, _, _, row1, _ in walk(blocks)][:-1]
    assert cuts
    assert all(cut % 48 == 0 for cut in cuts)


def test_an_empty_item_is_a_fault_of_the_program() -> None:
    with pytest.raises(RuntimeError, match="empty"):
        Blocks([TapeItem("a", 0, 0, 0, 10)], 65536)
