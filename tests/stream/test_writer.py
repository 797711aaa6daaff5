"""The background writer: the right bytes at the right place, and every failure told."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from kimistream.errors import OutputError
from kimistream.stream import writer as writer_module
from kimistream.stream.arena import Arena
from kimistream.stream.writer import Writer

SIZE = 40 * 4096


@pytest.fixture
def arena():
    with Arena(SIZE) as arena:
        arena.array(0, SIZE)[:] = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)
        yield arena


@pytest.mark.parametrize("direct", [True, False])
def test_bytes_land_where_they_belong_and_what_was_there_before_stays(
    tmp_path, arena, direct, monkeypatch, nothing_leaks
):
    monkeypatch.setattr(writer_module, "PIECE", 3 * 4096)
    path = tmp_path / "out"
    old = bytes(range(256)) * 16 * 50
    path.write_bytes(old)
    with Writer(path, direct=direct) as writer:
        tickets = [writer.submit(at * 4096, arena.view(at * 4096, 10 * 4096)) for at in (30, 0, 10)]
        for ticket in tickets:
            ticket.wait()
            assert ticket.done
        writer.sync()
        writer.finish(45 * 4096 + 7)
    data = bytes(arena.array(0, SIZE))
    assert (
        path.read_bytes()
        == data[: 20 * 4096]
        + old[20 * 4096 : 30 * 4096]
        + data[30 * 4096 :]
        + (old[40 * 4096 : 45 * 4096 + 7])
    )


def test_an_empty_write_is_done_at_once_and_a_crooked_one_is_a_fault(tmp_path, arena):
    with Writer(tmp_path / "out") as writer:
        ticket = writer.submit(0, arena.view(0, 0))
        ticket.wait()
        with pytest.raises(RuntimeError, match="not aligned"):
            writer.submit(1, arena.view(0, 4096))
        with pytest.raises(RuntimeError, match="not aligned"):
            writer.submit(0, arena.view(0, 4095))


def test_a_failed_write_is_told_with_its_cause_and_so_is_all_behind_it(tmp_path, arena, nothing_leaks):
    def failing(handle: int, view: memoryview, offset: int) -> int:
        if offset >= 4096:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(handle, view, offset)

    path = tmp_path / "out"
    with Writer(path, pwrite=failing) as writer:
        first, second = (writer.submit(at, arena.view(at, 4096)) for at in (0, 4096))
        first.wait()
        with pytest.raises(OutputError, match=r"No space left on device \(ENOSPC\)") as caught:
            second.wait()
        assert str(path) in caught.value.what
        with pytest.raises(OutputError):
            writer.submit(0, arena.view(0, 4096)).wait()


@pytest.mark.parametrize("failure", [RuntimeError("odd"), OSError(errno.EIO, "broken")])
def test_any_failure_in_a_thread_is_told(tmp_path, arena, failure):
    def failing(handle: int, view: memoryview, offset: int) -> int:
        raise failure

    with Writer(tmp_path / "out", pwrite=failing) as writer, pytest.raises(OutputError):
        writer.submit(0, arena.view(0, 4096)).wait()


def test_writing_that_goes_nowhere_is_an_error_and_interrupted_calls_go_on(tmp_path, arena):
    with Writer(tmp_path / "a", pwrite=lambda *_: 0) as writer, pytest.raises(OutputError, match="EIO"):
        writer.submit(0, arena.view(0, 4096)).wait()
    calls: list[int] = []

    def interrupted(handle: int, view: memoryview, offset: int) -> int:
        calls.append(offset)
        if len(calls) == 1:
            raise InterruptedError
        return os.pwrite(handle, view, offset)

    with Writer(tmp_path / "b", pwrite=interrupted) as writer:
        writer.submit(0, arena.view(0, 4096)).wait()
    assert calls == [0, 0]


def test_a_file_that_cannot_be_opened_is_refused_by_name(tmp_path):
    with pytest.raises(OutputError, match="cannot be written"):
        Writer(tmp_path / "missing" / "out")
    with pytest.raises(OutputError, match="EISDIR"):
        Writer(Path(tmp_path))


def test_closing_with_writes_queued_ends_the_threads(tmp_path, arena, nothing_leaks):
    gate = threading.Event()

    def slow(handle: int, view: memoryview, offset: int) -> int:
        gate.wait(5)
        return len(view)

    writer = Writer(tmp_path / "out", pwrite=slow)
    for _ in range(20):
        writer.submit(0, arena.view(0, 4096))
    threading.Timer(0.1, gate.set).start()
    writer.close()
