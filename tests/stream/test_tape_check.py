"""A tape whose parts are looked at before they are used: streamed ones each time, pinned ones once."""

from __future__ import annotations

import pytest

from kimistream.errors import PackError
from kimistream.stream.blocks import Blocks, TapeItem
from kimistream.stream.reader import Reader
from kimistream.stream.tape import Part, Tape

from .conftest import Sample


class Looker:
    """Notes what it was shown; refuses the parts of some items."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []
        self.bad: set[int] = set()

    def __call__(self, item: int, part: Part) -> None:
        self.seen.append((item, part.row0, part.row1))
        if item in self.bad:
            raise PackError(f"item {item} is damaged")


@pytest.fixture
def blocks() -> Blocks:
    """Six items of 32 kB, half of one in a block."""
    return Blocks([TapeItem(f"t{i}", 0, i * 32768, 32, 1024) for i in range(6)], 16384)


def play(tape: Tape, blocks: Blocks) -> None:
    tape.begin(head=True, more=False)
    for item in range(len(blocks.items)):
        for _ in tape.take(item):
            pass
    tape.finish()


def test_streamed_parts_are_looked_at_each_time_and_pinned_ones_once(sample: Sample, blocks: Blocks) -> None:
    look = Looker()
    pinned = [0, 1, 2, 6]
    with Reader([sample.path]) as reader, Tape(reader, blocks, 3, pinned, check=look) as tape:
        play(tape, blocks)
        everything = [tuple(part[:3]) for part in blocks.parts.tolist()]
        assert look.seen == everything
        look.seen.clear()
        play(tape, blocks)
        kept = {
            tuple(blocks.parts[k][:3].tolist()) for b in pinned for k in range(*blocks.part_start[b : b + 2])
        }
        assert look.seen == [part for part in everything if part not in kept]


def test_what_the_look_raises_comes_out_before_the_part_and_a_bad_pinned_part_is_looked_at_again(
    sample: Sample, blocks: Blocks
) -> None:
    look = Looker()
    with Reader([sample.path]) as reader, Tape(reader, blocks, 0, range(len(blocks)), check=look) as tape:
        look.bad = {2}
        for _ in range(2):
            tape.begin(head=True, more=False)
            for item in range(2):
                list(tape.take(item))
            with pytest.raises(PackError, match="item 2 is damaged"):
                next(iter(tape.take(2)))
            assert look.seen[-1][0] == 2
        look.bad = set()
        look.seen.clear()
        play(tape, blocks)
        assert [item for item, _, _ in look.seen] == [2, 2, 3, 3, 4, 4, 5, 5]


def test_resident_parts_are_handed_out_only_after_they_were_looked_at(sample: Sample, blocks: Blocks) -> None:
    look = Looker()
    with Reader([sample.path]) as reader, Tape(reader, blocks, 0, range(len(blocks)), check=look) as tape:
        tape.begin(head=True, more=False)
        parts = tape.take(0)
        next(parts)
        assert tape.resident(0) is None, "its second half was not looked at yet"
        list(parts)
        assert [part[:2] for part in tape.resident(0) or []] == [(0, 16), (16, 32)]
        assert tape.resident(1) is None


def test_items_may_be_cut_at_any_row_where_multiples_are_not_asked_for() -> None:
    """A run of bands fills its blocks: 16 bands may be larger than a block's rest, one is not."""
    wide = TapeItem("bands", 0, 0, 40, 3000, 1, 1)
    counts = [int(row1 - row0) for _, row0, row1, _ in Blocks([wide], 64 << 10).parts]
    assert counts[0] == 21
    heads = TapeItem("heads", 0, 0, 40, 3000, 4, 1)
    assert [int(row1 - row0) % 4 for _, row0, row1, _ in Blocks([heads], 64 << 10).parts] == [0, 0]
