from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kimistream.errors import ReadError
from kimistream.stream.expert_runs import slot_bytes
from kimistream.stream.expert_store import Addresses, ExpertStore
from kimistream.stream.reader import Reader
from kimistream.stream.requests import KIND_TAPE, TAPE

from .conftest import Sample

BytesAt = Callable[[int, int], bytes]
LAYERS = (1, 2, 5)
EXPERTS = 24


@dataclass
class Runs:
    offsets: NDArray[np.int64]
    files: NDArray[np.int16]
    sizes: tuple[int, int, int, int, int, int]
    contiguous: NDArray[np.bool_]


def make_runs(sizes: tuple[int, int, int, int, int, int], torn: int = 0) -> dict[int, Runs]:
    """Layers of experts in a row of runs; every `torn`-th expert has its tensors in reverse order, apart."""
    total = sum(sizes)
    runs = {}
    for n, layer in enumerate(LAYERS):
        offsets = np.zeros((EXPERTS, 6), np.int64)
        contiguous = np.ones(EXPERTS, bool)
        for expert in range(EXPERTS):
            base = 1000 + (n * EXPERTS + expert) * (total + 600)
            starts = base + np.concatenate([[0], np.cumsum(sizes[:-1])])
            if torn and expert % torn == 0:
                contiguous[expert] = False
                starts = base + np.array([sum(sizes[k + 1 :]) + 100 * (5 - k) for k in range(6)])
            offsets[expert] = starts
        files = np.full((EXPERTS, 6), n % 2, np.int16)
        runs[layer] = Runs(offsets, files, sizes, contiguous)
    return runs


FULL = make_runs((5000, 300, 4000, 300, 5000, 300))
TORN = make_runs((5000, 300, 4000, 300, 5000, 300), torn=3)
PLAIN = make_runs((9000, 0, 8000, 0, 9000, 0), torn=4)


def check(
    sample: Sample, bytes_at: BytesAt, runs: Runs, ids: NDArray[np.int32], batch: list[tuple[int, Addresses]]
) -> None:
    for i, addresses in batch:
        for k, address in enumerate(addresses):
            offset, size = int(runs.offsets[ids[i], k]), runs.sizes[k]
            if size == 0:
                assert address == 0
            else:
                assert bytes_at(address, size) == sample.data[offset : offset + size]


def ask(
    store: ExpertStore, sample: Sample, bytes_at: BytesAt, layer: int, experts: list[int]
) -> list[list[int]]:
    """Request, check every byte, return the batches of experts."""
    ids = np.array(experts, np.int32)
    store.request(layer, ids)
    batches = []
    for batch in store.arrivals():
        check(sample, bytes_at, store.runs[layer], ids, batch)  # type: ignore[arg-type]
        batches.append([experts[i] for i, _ in batch])
    assert sorted(e for batch in batches for e in batch) == experts
    return batches


@pytest.fixture
def reader(sample: Sample) -> Iterator[Reader]:
    with Reader([sample.path, sample.path], threads=3, request_bytes=4096) as made:
        yield made


asked = st.lists(
    st.tuples(
        st.sampled_from(LAYERS),
        st.sets(st.integers(0, EXPERTS - 1), min_size=1, max_size=EXPERTS).map(sorted),
        st.lists(st.integers(0, EXPERTS - 1), max_size=6, unique=True),
        st.sampled_from(LAYERS),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([FULL, TORN, PLAIN]), st.integers(1, 30), st.integers(0, 6), asked)
def test_every_expert_arrives_once_with_its_bytes_whatever_slots_and_guesses(
    sample: Sample,
    bytes_at: BytesAt,
    runs: dict[int, Runs],
    slots: int,
    guesses: int,
    requests: list[tuple[int, list[int], list[int], int]],
) -> None:
    with (
        Reader([sample.path, sample.path], threads=3, request_bytes=4096) as reader,
        ExpertStore(reader, runs, slots, guesses=guesses) as store,
    ):
        for layer, experts, guessed, guessed_layer in requests:
            store.hint(guessed_layer, np.array(guessed, np.int32))
            ask(store, sample, bytes_at, layer, experts)
        assert store.resident <= slots


def test_experts_in_memory_come_first_and_are_not_read_again(
    sample: Sample, bytes_at: BytesAt, reader: Reader
) -> None:
    with ExpertStore(reader, FULL, 12) as store:
        ask(store, sample, bytes_at, 1, [2, 4, 6, 8])
        assert ask(store, sample, bytes_at, 1, [1, 2, 3, 8])[0] == [2, 8]
        assert (store.counters.read, store.counters.reused) == (6, 2)
        before = reader.counters().expert_bytes
        ask(store, sample, bytes_at, 1, [1, 2, 3, 4, 6, 8])
        assert reader.counters().expert_bytes == before


def test_the_same_number_in_another_layer_is_another_expert(
    sample: Sample, bytes_at: BytesAt, reader: Reader
) -> None:
    with ExpertStore(reader, FULL, 12) as store:
        for layer in LAYERS:
            ask(store, sample, bytes_at, layer, [3, 4])
        assert store.counters.read == 6


def test_a_union_larger_than_the_slots_goes_through_in_waves(
    sample: Sample, bytes_at: BytesAt, reader: Reader
) -> None:
    for slots in (1, 2, 5):
        with ExpertStore(reader, FULL, slots) as store:
            batches = ask(store, sample, bytes_at, 2, list(range(EXPERTS)))
            assert max(map(len, batches)) <= slots
            assert store.nbytes <= slots * store.slot_bytes + 4096


def test_half_of_the_slots_stay_with_the_reader_while_more_is_to_be_read(
    sample: Sample, bytes_at: BytesAt, reader: Reader
) -> None:
    with ExpertStore(reader, FULL, 6) as store:
        store.request(1, np.arange(12, dtype=np.int32))
        while store._arrived.qsize() < 6:
            time.sleep(0.001)
        sizes = []
        for batch in store.arrivals():
            sizes.append(len(batch))
            time.sleep(0.02)
        assert sizes[0] == 3
        assert sum(sizes) == 12


def test_reading_goes_on_while_a_batch_is_held_and_the_batch_stays_whole(
    sample: Sample, bytes_at: BytesAt, reader: Reader
) -> None:
    with ExpertStore(reader, FULL, 3) as store:
        ids = np.arange(EXPERTS, dtype=np.int32)
        store.request(1, ids)
        for batch in store.arrivals():
            time.sleep(0.005)
            check(sample, bytes_at, FULL[1], ids, batch)


def test_an_expert_is_kept_for_how_often_it_was_used_not_how_lately(
    sample: Sample, bytes_at: BytesAt, reader: Reader
) -> None:
    with ExpertStore(reader, FULL, 6) as store:
        for other in range(2, 20, 2):
            ask(store, sample, bytes_at, 1, [0, 1])
            ask(store, sample, bytes_at, 2, [other, other + 1])
            ask(store, sample, bytes_at, 5, [other, other + 1])
        assert store.counters.reused == 2 * 8  # least recently used would have thrown 0 and 1 out each time


def test_a_request_overtakes_the_tape(sample: Sample, bytes_at: BytesAt) -> None:
    order: list[int] = []

    def noted(fd: int, buffers: list[memoryview], offset: int) -> int:
        order.append(offset)
        time.sleep(0.002)
        return os.preadv(fd, buffers, offset)

    with (
        Reader([sample.path, sample.path], threads=1, request_bytes=4096, pread=noted) as reader,
        ExpertStore(reader, FULL, 4) as store,
    ):
        memory = memoryview(bytearray(65536 + 4096))
        align = -np.frombuffer(memory, np.uint8).ctypes.data % 4096
        tape = reader.submit(
            [(0, 2_500_000 // 4096 * 4096, 65536, memory[align : align + 65536])], TAPE, KIND_TAPE
        )
        ask(store, sample, bytes_at, 1, [7])
        tape.wait()
    late = [offset for offset in order if offset < 2_000_000]
    assert order.index(late[-1]) <= len(late) + 1


def test_a_right_guess_is_not_read_again_and_a_wrong_one_is_dropped(
    sample: Sample, bytes_at: BytesAt
) -> None:
    hold = threading.Event()

    def held(fd: int, buffers: list[memoryview], offset: int) -> int:
        hold.wait()
        return os.preadv(fd, buffers, offset)

    with (
        Reader([sample.path, sample.path], threads=2, request_bytes=4096, pread=held) as reader,
        ExpertStore(reader, FULL, 8, guesses=4) as store,
    ):
        assert store.hint(2, np.array([3, 9, 11, 12, 13], np.int32)) == 4  # no more than allowed
        ids = np.array([3, 5], np.int32)
        store.request(2, ids)
        hold.set()
        for batch in store.arrivals():
            check(sample, bytes_at, FULL[2], ids, batch)
        assert store.counters.guessed_right == 1
        assert store.counters.read == 1
        pieces = -(-store.slot_bytes // 4096)
        time.sleep(0.05)
        # of the three wrong guesses none was begun: the only thread for guesses was busy with the first
        assert reader.counters().requests <= 2 * pieces
        assert store.hint(2, np.array([3, 9], np.int32)) == 1  # 3 is there


def test_a_guess_that_arrived_before_the_router_is_a_hit(
    sample: Sample, bytes_at: BytesAt, reader: Reader
) -> None:
    with ExpertStore(reader, FULL, 8, guesses=4) as store:
        store.hint(5, np.array([1, 2], np.int32))
        while not all(ticket.done for ticket in store._guess_tickets.values()):
            time.sleep(0.001)
        assert ask(store, sample, bytes_at, 5, [1, 2, 3])[0] == [1, 2]
        assert store.counters.read == 1


def test_guesses_that_do_not_come_true_are_given_up_but_looked_at_again(
    sample: Sample, bytes_at: BytesAt, reader: Reader
) -> None:
    rng = np.random.default_rng(3)
    with ExpertStore(reader, FULL, 10, guesses=4) as store:

        def started(right: bool) -> int:
            ids = np.sort(rng.choice(EXPERTS, 4, replace=False))
            others = np.setdiff1d(np.arange(EXPERTS), ids)[:4]
            count = store.hint(1, (ids if right else others).astype(np.int32))
            ask(store, sample, bytes_at, 1, ids.tolist())
            return count

        for _ in range(60):
            started(right=False)
        assert sum(started(right=False) for _ in range(16)) <= 2
        for _ in range(200):
            started(right=True)
        assert sum(started(right=True) for _ in range(16)) >= 10


def test_guesses_are_off_without_room_for_them(sample: Sample, reader: Reader) -> None:
    with ExpertStore(reader, FULL, 8) as store:
        assert store.hint(1, np.array([1, 2], np.int32)) == 0


def test_an_error_reaches_the_consumer_and_the_store_works_again_afterwards(
    sample: Sample, bytes_at: BytesAt
) -> None:
    broken = [True]
    bad = int(FULL[1].offsets[7, 0])

    def pread(fd: int, buffers: list[memoryview], offset: int) -> int:
        if broken[0] and offset <= bad < offset + len(buffers[0]):
            raise OSError(errno.EIO, "Input/output error")
        return os.preadv(fd, buffers, offset)

    with (
        Reader([sample.path, sample.path], pread=pread) as reader,
        ExpertStore(reader, FULL, 4, guesses=2) as store,
    ):
        store.hint(1, np.array([7], np.int32))
        time.sleep(0.02)
        with pytest.raises(ReadError, match="EIO"):
            ask(store, sample, bytes_at, 1, list(range(EXPERTS)))
        broken[0] = False
        ask(store, sample, bytes_at, 1, list(range(EXPERTS)))


@pytest.mark.usefixtures("nothing_leaks")
def test_ctrl_c_anywhere_leaves_a_store_that_works_again(sample: Sample, bytes_at: BytesAt) -> None:
    def slow(fd: int, buffers: list[memoryview], offset: int) -> int:
        time.sleep(0.0003)
        return os.preadv(fd, buffers, offset)

    with (
        Reader([sample.path, sample.path], threads=2, request_bytes=4096, pread=slow) as reader,
        ExpertStore(reader, TORN, 7, guesses=3) as store,
    ):
        for moment in range(15):
            timer = threading.Timer(0.0009 * moment, os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                while True:
                    store.hint(2, np.array([moment, 20, 21], np.int32))
                    ask(store, sample, bytes_at, 1, [moment, 16, 17, 18])
                    ask(store, sample, bytes_at, 2, [moment, 16, 17, 20])
            except KeyboardInterrupt:
                pass
            timer.join()
        for layer in LAYERS:
            ask(store, sample, bytes_at, layer, list(range(EXPERTS)))


def test_waiting_for_experts_is_counted(sample: Sample, bytes_at: BytesAt) -> None:
    def slow(fd: int, buffers: list[memoryview], offset: int) -> int:
        time.sleep(0.02)
        return os.preadv(fd, buffers, offset)

    with Reader([sample.path, sample.path], pread=slow) as reader, ExpertStore(reader, FULL, 4) as store:
        ask(store, sample, bytes_at, 1, [1, 2])
        waited = store.counters.wait_seconds
        assert waited >= 0.015
        ask(store, sample, bytes_at, 1, [1, 2])
        assert store.counters.wait_seconds == waited


def test_a_slot_holds_any_expert_with_the_room_direct_reads_need() -> None:
    one = make_runs((5000, 300, 4000, 300, 5000, 300))[1]
    # 14,900 bytes that begin at any place: at most 4 pages and a bit at each end
    assert 14_900 + 4095 <= slot_bytes(one) <= 14_900 + 2 * 4096
    apart = make_runs((5000, 300, 4000, 300, 5000, 300), torn=1)[1]
    assert slot_bytes(apart) >= slot_bytes(one) + 4096
    assert slot_bytes(apart) <= 14_900 + 6 * 2 * 4096
