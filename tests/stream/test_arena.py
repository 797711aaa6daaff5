from __future__ import annotations

import threading

import numpy as np
import pytest

from kimistream.budget import current_rss
from kimistream.stream.arena import Arena


def test_memory_is_page_aligned_writable_and_zero() -> None:
    with Arena(10_000) as arena:
        assert arena.address % 4096 == 0
        assert arena.nbytes == 12_288
        view = arena.view(5000, 100)
        assert bytes(view) == bytes(100)
        view[:3] = b"abc"
        assert arena.array(5000, 3).tobytes() == b"abc"
        assert arena.array(0, 12_288).ctypes.data == arena.address


def test_a_view_outside_is_a_fault_of_the_program() -> None:
    with Arena(4096) as arena:
        for offset, nbytes in ((-1, 1), (0, 4097), (4096, 1)):
            with pytest.raises(RuntimeError, match="outside"):
                arena.view(offset, nbytes)


def test_touching_makes_resident_exactly_what_was_asked_for_and_closing_gives_it_back() -> None:
    size = 40 << 20
    before = current_rss()
    arena = Arena(size)
    assert current_rss() - before < 4 << 20
    assert arena.touch() > 0
    assert size - (1 << 20) <= current_rss() - before <= size + (2 << 20)
    assert not np.any(arena.array(0, size))
    arena.close()
    assert current_rss() - before < 4 << 20
    arena.close()


def test_closing_with_a_view_alive_gives_the_pages_back_and_does_not_crash() -> None:
    before = current_rss()
    arena = Arena(40 << 20)
    arena.touch()
    view = arena.view(0, 100)
    arena.close()
    assert bytes(view) == bytes(100)
    assert current_rss() - before < 4 << 20
    with pytest.raises(RuntimeError, match="closed"):
        arena.view(0, 1)


def test_touching_tells_its_progress_and_stops_when_interrupted() -> None:
    with Arena(200 << 20) as arena:
        seen: list[int] = []
        arena.touch(threads=2, progress=seen.append)
        assert seen == sorted(seen)
        assert 0 < seen[-1] <= arena.nbytes

    def stop(nbytes: int) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    for threads in (1, 3):
        with Arena(200 << 20) as arena:
            resident = current_rss()
            with pytest.raises(KeyboardInterrupt):
                arena.touch(threads, progress=stop)
            assert threading.active_count() == before
            if threads == 1:
                assert current_rss() - resident <= 34 << 20
