from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimistream.errors import ReadError
from kimistream.stream.blocks import Blocks, TapeItem
from kimistream.stream.reader import Reader
from kimistream.stream.tape import Tape

from .conftest import Sample
from .test_blocks import tapes

BytesAt = Callable[[int, int], bytes]


def even_items(count: int, row_bytes: int = 1024, rows: int = 32) -> list[TapeItem]:
    return [TapeItem(f"t{i}", 0, i * rows * row_bytes, rows, row_bytes) for i in range(count)]


def play(tape: Tape, sample: Sample, bytes_at: BytesAt, items: Sequence[int]) -> None:
    """Take items and compare every byte."""
    for index in items:
        item = tape.blocks.items[index]
        row = 0
        for part in tape.take(index):
            assert part.row0 == row
            row = part.row1
            nbytes = (part.row1 - part.row0) * item.row_bytes
            offset = item.offset + part.row0 * item.row_bytes
            assert bytes_at(part.address, nbytes) == sample.data[offset : offset + nbytes], (index, part)
        assert row == item.rows


@settings(max_examples=60, deadline=None)
@given(
    tapes(),
    st.sampled_from([4096, 16384, 65536, 1 << 20]),
    st.integers(1, 6),
    st.integers(0, 4),
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 40)), min_size=1, max_size=4),
)
def test_a_consumer_sees_the_bytes_of_the_files_whatever_ring_and_pins_and_passes(
    sample: Sample,
    bytes_at: BytesAt,
    spec: tuple[list[TapeItem], int | None],
    block_bytes: int,
    ring: int,
    quarters: int,
    passes: list[tuple[bool, bool, int]],
) -> None:
    items, head = spec
    blocks = Blocks(items, block_bytes, head_start=head)
    pinned = [b for b in range(len(blocks)) if (b + 1) * quarters // 4 > b * quarters // 4]
    with (
        Reader([sample.path, sample.path], threads=3, request_bytes=8192) as reader,
        Tape(reader, blocks, ring, pinned) as tape,
    ):
        for with_head, more, stop in passes:
            tape.begin(with_head, more)
            wanted = range(len(items) if with_head else blocks.head_start)
            play(tape, sample, bytes_at, wanted[:stop])
            if stop >= len(wanted):
                tape.finish()  # else the pass is given up: begin starts over


@pytest.fixture
def ten(sample: Sample) -> Blocks:
    """Ten items of 32 kB, one block each, the last two are the head."""
    return Blocks(even_items(10), 32768, head_start=8)


@pytest.mark.usefixtures("nothing_leaks")
def test_the_ring_is_read_ahead_over_the_end_of_the_pass(
    sample: Sample, bytes_at: BytesAt, ten: Blocks
) -> None:
    with Reader([sample.path]) as reader, Tape(reader, ten, 3) as tape:
        tape.begin(head=True, more=True)
        play(tape, sample, bytes_at, range(10))
        tape.finish()
        assert tape.blocks_read == 13  # blocks 0, 1, 2 of the pass that has not begun
        tape.begin(head=False, more=False)
        assert tape.blocks_read == 13
        play(tape, sample, bytes_at, range(8))
        tape.finish()
        assert tape.blocks_read == 18


def test_nothing_is_read_ahead_when_no_pass_follows(sample: Sample, bytes_at: BytesAt, ten: Blocks) -> None:
    with Reader([sample.path]) as reader, Tape(reader, ten, 3) as tape:
        tape.begin(head=True, more=False)
        play(tape, sample, bytes_at, range(10))
        tape.finish()
        assert tape.blocks_read == 10


def test_the_head_is_not_read_in_a_pass_without_logits(
    sample: Sample, bytes_at: BytesAt, ten: Blocks
) -> None:
    with Reader([sample.path]) as reader, Tape(reader, ten, 3) as tape:
        tape.begin(head=False, more=False)
        play(tape, sample, bytes_at, range(8))
        tape.finish()
        assert reader.counters().tape_bytes == 8 * 32768


def test_pinned_blocks_are_read_once(sample: Sample, bytes_at: BytesAt, ten: Blocks) -> None:
    with Reader([sample.path]) as reader, Tape(reader, ten, 2, pinned=[1, 3, 5, 8]) as tape:
        assert tape.nbytes == 6 * 32768
        for _ in range(4):
            tape.begin(head=True, more=False)
            play(tape, sample, bytes_at, range(10))
            tape.finish()
        assert reader.counters().tape_bytes == (10 + 3 * 6) * 32768


def test_a_wholly_pinned_tape_needs_no_ring_and_no_second_reading(
    sample: Sample, bytes_at: BytesAt, ten: Blocks
) -> None:
    with Reader([sample.path]) as reader, Tape(reader, ten, 0, pinned=range(10)) as tape:
        for head in (False, True, True):
            tape.begin(head, more=True)
            play(tape, sample, bytes_at, range(10 if head else 8))
            tape.finish()
        assert reader.counters().tape_bytes == 10 * 32768
        waited = tape.wait_seconds
        tape.begin(head=True, more=False)
        play(tape, sample, bytes_at, range(10))
        tape.finish()
        assert tape.wait_seconds == waited


def test_a_tape_that_is_not_wholly_pinned_needs_a_ring(sample: Sample, ten: Blocks) -> None:
    with Reader([sample.path]) as reader, pytest.raises(RuntimeError, match="ring"):
        Tape(reader, ten, 0, pinned=range(9))


def test_the_last_part_stays_until_the_next_take(sample: Sample, bytes_at: BytesAt) -> None:
    blocks = Blocks(even_items(6), 32768)
    with Reader([sample.path]) as reader, Tape(reader, blocks, 1) as tape:
        tape.begin(head=True, more=False)
        (part,) = tape.take(0)
        time.sleep(0.02)
        assert bytes_at(part.address, 32768) == sample.data[:32768]
        assert tape.blocks_read == 1
        tape.release()
        assert tape.blocks_read == 2


def test_release_keeps_a_block_that_the_next_item_begins_in(sample: Sample, bytes_at: BytesAt) -> None:
    blocks = Blocks(even_items(6), 65536)  # two items a block
    with Reader([sample.path]) as reader, Tape(reader, blocks, 1) as tape:
        tape.begin(head=True, more=False)
        play(tape, sample, bytes_at, [0])
        tape.release()
        assert tape.blocks_read == 1
        play(tape, sample, bytes_at, range(1, 6))
        tape.finish()


def test_items_out_of_order_are_a_fault_of_the_program(sample: Sample, ten: Blocks) -> None:
    with Reader([sample.path]) as reader, Tape(reader, ten, 3) as tape:
        with pytest.raises(RuntimeError, match="item 0 "):
            tape.take(0)
        tape.begin(head=False, more=False)
        for wrong in (1, 8):
            with pytest.raises(RuntimeError, match="next on the tape"):
                tape.take(wrong)
        with pytest.raises(RuntimeError, match="ended at item 0 of 8"):
            tape.finish()


def test_an_error_reaches_the_consumer_and_the_tape_works_again_afterwards(
    sample: Sample, bytes_at: BytesAt, ten: Blocks
) -> None:
    broken = [True]

    def pread(fd: int, buffers: list[memoryview], offset: int) -> int:
        if broken[0] and offset == 5 * 32768:
            raise OSError(errno.EIO, "Input/output error")
        return os.preadv(fd, buffers, offset)

    for pinned in ([], [5], range(10)):
        broken[0] = True
        with Reader([sample.path], pread=pread) as reader, Tape(reader, ten, 3, pinned) as tape:
            tape.begin(head=True, more=True)
            play(tape, sample, bytes_at, range(5))
            with pytest.raises(ReadError, match="EIO"):
                play(tape, sample, bytes_at, [5])
            broken[0] = False
            tape.begin(head=True, more=False)
            play(tape, sample, bytes_at, range(10))
            tape.finish()


@pytest.mark.usefixtures("nothing_leaks")
@pytest.mark.parametrize("pinned", [[], [1, 4, 7], range(10)])
def test_ctrl_c_anywhere_leaves_a_tape_that_can_play_again(
    sample: Sample, bytes_at: BytesAt, ten: Blocks, pinned: Sequence[int]
) -> None:
    def slow(fd: int, buffers: list[memoryview], offset: int) -> int:
        time.sleep(0.0005)
        return os.preadv(fd, buffers, offset)

    with (
        Reader([sample.path], threads=2, request_bytes=8192, pread=slow) as reader,
        Tape(reader, ten, 3 if len(pinned) < 10 else 0, pinned) as tape,
    ):
        for moment in range(15):
            timer = threading.Timer(0.0007 * moment, os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                while True:
                    tape.begin(head=True, more=True)
                    play(tape, sample, bytes_at, range(10))
                    tape.finish()
            except KeyboardInterrupt:
                pass
            timer.join()
        started = time.perf_counter()
        tape.begin(head=True, more=False)
        play(tape, sample, bytes_at, range(10))
        tape.finish()
        assert time.perf_counter() - started < 1


@pytest.mark.usefixtures("nothing_leaks")
def test_closing_in_the_middle_of_a_pass_is_quick(sample: Sample, ten: Blocks) -> None:
    def slow(fd: int, buffers: list[memoryview], offset: int) -> int:
        time.sleep(0.05)
        return os.preadv(fd, buffers, offset)

    with Reader([sample.path], threads=2, request_bytes=4096, pread=slow) as reader:
        tape = Tape(reader, ten, 4)
        tape.begin(head=True, more=True)
        next(tape.take(0))
        started = time.perf_counter()
        tape.close()
    assert time.perf_counter() - started < 1


def test_waiting_for_bytes_is_counted_and_idle_reading_has_its_cause(
    sample: Sample, bytes_at: BytesAt, ten: Blocks
) -> None:
    def slow(fd: int, buffers: list[memoryview], offset: int) -> int:
        time.sleep(0.01)
        return os.preadv(fd, buffers, offset)

    with Reader([sample.path], threads=1, pread=slow) as reader, Tape(reader, ten, 2) as tape:
        tape.begin(head=False, more=False)
        play(tape, sample, bytes_at, range(4))
        assert tape.wait_seconds >= 0.03
        before = reader.counters()
        time.sleep(0.25)  # a slow consumer: the ring fills, then the reader has nowhere to read to
        spent = reader.counters() - before
        assert spent.ring_full_seconds >= 0.03
        assert spent.starved_seconds == 0
        play(tape, sample, bytes_at, range(4, 8))
        tape.finish()
        before = reader.counters()
        time.sleep(0.02)
        assert (reader.counters() - before).empty_seconds == 0  # the pass is over: nothing is wanted


def test_touching_makes_all_memory_resident_beforehand(
    sample: Sample, bytes_at: BytesAt, ten: Blocks
) -> None:
    with Reader([sample.path]) as reader, Tape(reader, ten, 2, pinned=[3]) as tape:
        assert tape.touch() > 0
        tape.begin(head=True, more=False)
        play(tape, sample, bytes_at, range(10))
        tape.finish()
