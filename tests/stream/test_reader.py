from __future__ import annotations

import errno
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from kimistream.errors import ReadError, ShardError
from kimistream.stream import files
from kimistream.stream.arena import Arena
from kimistream.stream.reader import Reader, span
from kimistream.stream.requests import (
    EXPERT,
    EXPERT_SOURCE,
    FULL,
    HUNGRY,
    KIND_EXPERT,
    KIND_SPECULATIVE,
    KIND_TAPE,
    NOTHING,
    SPECULATIVE,
    TAPE,
    TAPE_SOURCE,
)

from .conftest import Sample, open_descriptors

pytestmark = pytest.mark.usefixtures("nothing_leaks")

RUNS = [(0, 4096), (1, 1), (4095, 2), (12_345, 700_001), (2_900_000, 100_017), (3_000_016, 1)]


def fetch(reader: Reader, offset: int, nbytes: int, kind: int = KIND_TAPE) -> bytes:
    """The bytes as the reader delivers them into aligned memory."""
    start, room, lead = reader.span(offset, nbytes)
    with Arena(room) as arena:
        view = arena.view(0, room)
        reader.submit([(0, start, lead + nbytes, view)], TAPE, kind).wait()
        return bytes(view[lead : lead + nbytes])


def check_runs(reader: Reader, sample: Sample) -> None:
    for offset, nbytes in RUNS:
        assert fetch(reader, offset, nbytes) == sample.data[offset : offset + nbytes]


class Gate:
    """A pread that stops until it is let through; notes the order of the offsets."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.open = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def __call__(self, fd: int, buffers: list[memoryview], offset: int) -> int:
        self.order.append(offset)
        self.entered.release()
        self.open.acquire()
        return os.preadv(fd, buffers, offset)

    def let_all(self) -> None:
        self.open.release(10_000)


def test_a_span_is_the_smallest_aligned_one_around_the_bytes() -> None:
    assert span(0, 4096) == (0, 4096, 0)
    assert span(4095, 2) == (0, 8192, 4095)
    assert span(4096, 1) == (4096, 4096, 0)
    assert span(10_000, 5_000, 512) == (9728, 5632, 272)


@pytest.mark.parametrize("request_bytes", [4096, 65536, 1 << 30])
@pytest.mark.parametrize("direct", [True, False])
def test_any_run_of_bytes_is_read_exactly_even_at_the_end_of_the_file(
    sample: Sample, request_bytes: int, direct: bool
) -> None:
    with Reader([sample.path], request_bytes=request_bytes, direct=direct) as reader:
        check_runs(reader, sample)
        assert reader.read_now(0, 123, 4567) == sample.data[123:4690]
        assert reader.read_now(0, 5, 0) == b""


def test_no_read_reaches_a_gibibyte() -> None:
    with Reader([], request_bytes=1 << 40) as reader:
        assert reader.request_bytes < 1 << 30


def test_several_extents_are_one_ticket(sample: Sample) -> None:
    with Reader([sample.path, sample.path]) as reader, Arena(3 * 8192) as arena:
        extents = [(i % 2, 40_960 * i, 8000, arena.view(8192 * i, 8192)) for i in range(3)]
        reader.submit(extents, TAPE, KIND_TAPE).wait()
        for i in range(3):
            assert bytes(arena.view(8192 * i, 8000)) == sample.data[40_960 * i : 40_960 * i + 8000]


def test_an_empty_ticket_is_done_at_once(sample: Sample) -> None:
    with Reader([sample.path]) as reader:
        assert reader.submit([], TAPE, KIND_TAPE).done


def test_a_span_that_is_not_aligned_is_a_fault_of_the_program(sample: Sample) -> None:
    with Reader([sample.path]) as reader, Arena(8192) as arena, pytest.raises(RuntimeError, match="aligned"):
        reader.submit([(0, 100, 100, arena.view(0, 4096))], TAPE, KIND_TAPE)


# ---------------------------------------------------------------- faults


def test_direct_reading_refused_at_open_falls_back_and_says_so_once(sample: Sample) -> None:
    def refuse(path: str, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return os.open(path, flags)

    said: list[str] = []
    with Reader([sample.path] * 5, open_file=refuse, notice=said.append) as reader:
        check_runs(reader, sample)
        assert not reader.direct
        assert len(said) == 1
        assert "sample.bin" in said[0]
        assert reader.notices == said


def test_direct_reading_refused_at_the_first_read_falls_back_and_says_so_once(sample: Sample) -> None:
    direct_fds: set[int] = set()

    def note(path: str, flags: int) -> int:
        fd = os.open(path, flags)
        if flags & os.O_DIRECT:
            direct_fds.add(fd)
        return fd

    def refuse(fd: int, buffers: list[memoryview], offset: int) -> int:
        if fd in direct_fds:
            raise OSError(errno.EINVAL, "Invalid argument")
        return os.preadv(fd, buffers, offset)

    said: list[str] = []
    with Reader(
        [sample.path] * 2, open_file=note, pread=refuse, notice=said.append, request_bytes=8192
    ) as reader:
        check_runs(reader, sample)
        assert not reader.direct
        assert len(said) == 1


def test_a_refusal_that_remains_without_direct_reading_is_an_error_not_a_loop(sample: Sample) -> None:
    def refuse(fd: int, buffers: list[memoryview], offset: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    with Reader([sample.path], pread=refuse) as reader, pytest.raises(ReadError, match="EINVAL"):
        fetch(reader, 0, 10)


def test_an_error_of_the_disk_names_file_offset_and_cause_and_spares_other_reads(sample: Sample) -> None:
    def broken(fd: int, buffers: list[memoryview], offset: int) -> int:
        if offset <= 1_000_000 < offset + len(buffers[0]):
            raise OSError(errno.EIO, "Input/output error")
        return os.preadv(fd, buffers, offset)

    with Reader([sample.path], pread=broken, request_bytes=16384) as reader:
        with pytest.raises(ReadError) as caught:
            fetch(reader, 900_000, 200_000)
        assert "sample.bin" in caught.value.what
        assert "995,328" in caught.value.what  # the piece that holds byte 1,000,000
        assert "EIO" in caught.value.what
        assert "verify" in caught.value.remedy
        assert fetch(reader, 2_000_000, 50_000) == sample.data[2_000_000:2_050_000]


def test_interrupted_reads_go_on(sample: Sample) -> None:
    calls = [0]

    def interrupted(fd: int, buffers: list[memoryview], offset: int) -> int:
        calls[0] += 1
        if calls[0] % 3:
            raise InterruptedError(errno.EINTR, "Interrupted system call")
        return os.preadv(fd, buffers, offset)

    with Reader([sample.path], pread=interrupted, request_bytes=8192, threads=2) as reader:
        check_runs(reader, sample)
        assert not reader.notices


@pytest.mark.parametrize("most", [100, 4096, 5000, 9000])
@pytest.mark.parametrize("direct", [True, False])
def test_short_reads_go_on_where_they_stopped(sample: Sample, most: int, direct: bool) -> None:
    def short(fd: int, buffers: list[memoryview], offset: int) -> int:
        # a direct read must be asked for whole, then what came is cut
        data = bytearray(len(buffers[0]))
        got = min(most, len(os.pread(plain, len(data), offset)))
        buffers[0][:got] = os.pread(plain, got, offset)
        buffers[0][got : got + 10] = b"\xee" * len(buffers[0][got : got + 10])  # what lies behind is not data
        return got

    plain = os.open(sample.path, os.O_RDONLY)
    try:
        with Reader([sample.path], pread=short, request_bytes=65536, direct=direct) as reader:
            check_runs(reader, sample)
    finally:
        os.close(plain)


def test_a_file_that_ends_early_is_an_error_with_both_places(tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    path.write_bytes(bytes(10_000))
    for direct in (True, False):
        with Reader([path], direct=direct) as reader, pytest.raises(ReadError) as caught:
            fetch(reader, 9_000, 2_000)
        assert "cut.safetensors ends at byte 10,000" in caught.value.what
        assert "1,000 more" in caught.value.what


def test_any_other_exception_in_a_thread_reaches_the_one_who_waits(sample: Sample) -> None:
    def wrong(fd: int, buffers: list[memoryview], offset: int) -> int:
        raise ValueError("surprise")

    with Reader([sample.path], pread=wrong) as reader, pytest.raises(ReadError, match="surprise"):
        fetch(reader, 0, 10)


def test_a_file_that_cannot_be_opened_is_named_and_the_others_are_closed(sample: Sample) -> None:
    before = open_descriptors()
    with pytest.raises(ShardError, match="absent"):
        Reader([sample.path, sample.path.with_name("absent.bin")])
    assert open_descriptors() == before


# ---------------------------------------------------------------- order


def test_an_expert_read_overtakes_the_queued_tape_after_one_piece(sample: Sample) -> None:
    gate = Gate()
    with Reader([sample.path], threads=1, request_bytes=4096, pread=gate) as reader, Arena(65536) as arena:
        tape = reader.submit([(0, 0, 32768, arena.view(0, 32768))], TAPE, KIND_TAPE)
        gate.entered.acquire()
        expert = reader.submit([(0, 1_048_576, 8192, arena.view(32768, 8192))], EXPERT, KIND_EXPERT)
        gate.let_all()
        tape.wait()
        expert.wait()
    assert gate.order == [0, 1_048_576, 1_052_672, *range(4096, 32768, 4096)]


def test_a_guess_is_only_read_when_nothing_certain_is_queued(sample: Sample) -> None:
    gate = Gate()
    with Reader([sample.path], threads=1, request_bytes=4096, pread=gate) as reader, Arena(65536) as arena:
        first = reader.submit([(0, 0, 4096, arena.view(0, 4096))], TAPE, KIND_TAPE)
        gate.entered.acquire()
        guess = reader.submit([(0, 2_097_152, 8192, arena.view(4096, 8192))], SPECULATIVE, KIND_SPECULATIVE)
        tape = reader.submit([(0, 40_960, 8192, arena.view(16384, 8192))], TAPE, KIND_TAPE)
        gate.let_all()
        for ticket in (first, guess, tape):
            ticket.wait()
    assert gate.order == [0, 40_960, 45_056, 2_097_152, 2_101_248]


def test_guesses_leave_threads_free_for_certain_reads(sample: Sample) -> None:
    gate = Gate()
    with Reader([sample.path], threads=4, request_bytes=4096, pread=gate) as reader, Arena(65536) as arena:
        guess = reader.submit([(0, 0, 32768, arena.view(0, 32768))], SPECULATIVE, KIND_SPECULATIVE)
        gate.entered.acquire()
        gate.entered.acquire()
        time.sleep(0.02)
        assert len(gate.order) == 2
        expert = reader.submit([(0, 1_048_576, 4096, arena.view(32768, 4096))], EXPERT, KIND_EXPERT)
        gate.entered.acquire()
        assert gate.order[2] == 1_048_576
        gate.let_all()
        guess.wait()
        expert.wait()


def test_a_promoted_guess_goes_before_the_tape(sample: Sample) -> None:
    gate = Gate()
    arrived: list[object] = []
    with Reader([sample.path], threads=1, request_bytes=4096, pread=gate) as reader, Arena(65536) as arena:
        first = reader.submit([(0, 0, 4096, arena.view(0, 4096))], TAPE, KIND_TAPE)
        gate.entered.acquire()
        guess = reader.submit([(0, 2_097_152, 8192, arena.view(4096, 8192))], SPECULATIVE, KIND_SPECULATIVE)
        tape = reader.submit([(0, 40_960, 4096, arena.view(16384, 4096))], TAPE, KIND_TAPE)
        assert not reader.promote(guess, EXPERT, KIND_EXPERT, arrived.append, "tag")
        gate.let_all()
        for ticket in (first, guess, tape):
            ticket.wait()
        assert arrived == [guess]
        assert guess.tag == "tag"
        assert reader.promote(guess, EXPERT, KIND_EXPERT, arrived.append, "tag")
        assert reader.counters().expert_bytes == 8192
    assert gate.order == [0, 2_097_152, 2_101_248, 40_960]


def test_each_drive_has_its_own_queue(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.bin"
    other.write_bytes(sample.data[::-1])
    monkeypatch.setattr(files, "_drive_of", lambda fd: os.fstat(fd).st_ino)
    gate = Gate()
    with (
        Reader([sample.path, other], threads=1, request_bytes=4096, pread=gate) as reader,
        Arena(65536) as arena,
    ):
        assert reader.drives == 2
        slow = reader.submit([(0, 0, 8192, arena.view(0, 8192))], TAPE, KIND_TAPE)
        both = reader.submit(
            [(1, 4096, 4096, arena.view(8192, 4096)), (0, 4096, 4096, arena.view(12288, 4096))],
            TAPE,
            KIND_TAPE,
        )
        gate.entered.acquire()
        gate.entered.acquire()
        assert sorted(gate.order) == [0, 4096]  # the second drive did not wait for the first
        gate.let_all()
        slow.wait()
        both.wait()
        assert bytes(arena.view(8192, 4096)) == sample.data[::-1][4096:8192]
        assert bytes(arena.view(12288, 4096)) == sample.data[4096:8192]


# ---------------------------------------------------------------- stopping


def test_cancelled_reads_are_dropped_and_the_others_are_not(sample: Sample) -> None:
    gate = Gate()
    with Reader([sample.path], threads=1, request_bytes=4096, pread=gate) as reader, Arena(65536) as arena:
        dropped = reader.submit([(0, 0, 32768, arena.view(0, 32768))], TAPE, KIND_TAPE)
        kept = reader.submit([(0, 40_960, 4096, arena.view(32768, 4096))], TAPE, KIND_TAPE)
        gate.entered.acquire()
        reader.cancel([dropped])
        assert dropped.cancelled
        assert not dropped.done  # one piece is still in flight
        gate.let_all()
        kept.wait()
        assert dropped.done
    assert gate.order == [0, 40_960]


def test_drain_waits_for_what_is_in_flight_and_leaves_other_sources(sample: Sample) -> None:
    gate = Gate()
    with Reader([sample.path], threads=2, request_bytes=4096, pread=gate) as reader, Arena(65536) as arena:
        tape = reader.submit([(0, 0, 32768, arena.view(0, 32768))], TAPE, KIND_TAPE)
        gate.entered.acquire()
        gate.entered.acquire()
        expert = reader.submit([(0, 40_960, 4096, arena.view(32768, 4096))], EXPERT, KIND_EXPERT)
        assert not reader.drain(TAPE_SOURCE, timeout=0.05)
        gate.let_all()
        assert reader.drain(TAPE_SOURCE)
        assert tape.done
        expert.wait()
        assert reader.drain(EXPERT_SOURCE)
    assert sorted(gate.order)[:3] == [0, 4096, 40_960]


def test_close_is_quick_with_reads_queued_and_fails_them(sample: Sample) -> None:
    def slow(fd: int, buffers: list[memoryview], offset: int) -> int:
        time.sleep(0.05)
        return os.preadv(fd, buffers, offset)

    with Arena(1 << 20) as arena:
        reader = Reader([sample.path], threads=2, request_bytes=4096, pread=slow)
        ticket = reader.submit([(0, 0, 1 << 20, arena.view(0, 1 << 20))], TAPE, KIND_TAPE)
        started = time.perf_counter()
        reader.close()
        assert time.perf_counter() - started < 1
        with pytest.raises(ReadError, match="closed"):
            ticket.wait()
        late = reader.submit([(0, 0, 4096, arena.view(0, 4096))], TAPE, KIND_TAPE)
        with pytest.raises(ReadError, match="closed"):
            late.wait()
        reader.close()


def test_ctrl_c_ends_a_wait_at_once_and_the_reader_stays_usable(sample: Sample) -> None:
    gate = Gate()
    with Reader([sample.path], threads=2, pread=gate) as reader, Arena(4096) as arena:
        ticket = reader.submit([(0, 0, 4096, arena.view(0, 4096))], TAPE, KIND_TAPE)
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        started = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            ticket.wait()
        assert time.perf_counter() - started < 1
        timer.join()
        gate.let_all()
        ticket.wait()
        assert fetch(reader, 77, 5) == sample.data[77:82]


# ---------------------------------------------------------------- counting


def test_bytes_are_counted_by_kind_with_their_widening(sample: Sample) -> None:
    with Reader([sample.path], request_bytes=8192) as reader:
        fetch(reader, 4095, 2, KIND_TAPE)
        before = reader.counters()
        fetch(reader, 0, 20_000, KIND_EXPERT)
        fetch(reader, 0, 4096, KIND_SPECULATIVE)
        reader.read_now(0, 10, 33)
        spent = reader.counters() - before
        assert before.tape_bytes == 8192
        assert (spent.tape_bytes, spent.expert_bytes, spent.speculative_bytes) == (0, 20480, 4096)
        assert spent.other_bytes == 33
        assert spent.total_bytes == 20480 + 4096 + 33
        assert spent.requests == 3 + 1 + 1
        assert spent.busy_seconds > 0
        assert spent.bytes_per_second > 0


def test_time_without_reads_is_booked_to_its_cause(sample: Sample) -> None:
    with Reader([sample.path]) as reader:
        for wants, name in (
            ((NOTHING, NOTHING), None),
            ((FULL, NOTHING), "ring_full_seconds"),
            ((FULL, FULL), "ring_full_seconds"),
            ((NOTHING, FULL), "slots_full_seconds"),
            ((HUNGRY, NOTHING), "starved_seconds"),
        ):
            reader.wants(TAPE_SOURCE, wants[0])
            reader.wants(EXPERT_SOURCE, wants[1])
            before = reader.counters()
            time.sleep(0.02)
            spent = reader.counters() - before
            assert (spent.empty_seconds >= 0.02) == (name is not None)
            if name:
                assert getattr(spent, name) == spent.empty_seconds
            assert spent.busy_seconds == 0


def test_time_with_reads_is_busy_time_weighted_by_depth(sample: Sample) -> None:
    gate = Gate()
    with Reader([sample.path], threads=4, request_bytes=4096, pread=gate) as reader, Arena(16384) as arena:
        reader.wants(TAPE_SOURCE, FULL)
        ticket = reader.submit([(0, 0, 16384, arena.view(0, 16384))], TAPE, KIND_TAPE)
        for _ in range(4):
            gate.entered.acquire()
        before = reader.counters()
        time.sleep(0.03)
        spent = reader.counters() - before
        gate.let_all()
        ticket.wait()
        assert spent.busy_seconds >= 0.03
        assert spent.depth_seconds == pytest.approx(4 * spent.busy_seconds)
        assert spent.empty_seconds == 0
