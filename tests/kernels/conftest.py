"""Memory that ends exactly where a kernel may read, and a number of threads for one test."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator

import pytest

from kimistream.kernels import runtime

_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def guarded() -> Iterator[Callable[[bytes], int]]:
    """guarded(data) -> the address of a copy of data whose last byte is the last one before forbidden memory."""
    held = []

    def place(data: bytes) -> int:
        page = mmap.PAGESIZE
        room = -(-len(data) // page) * page
        memory = mmap.mmap(-1, room + page)
        memory[room - len(data) : room] = data
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert _libc.mprotect(ctypes.c_void_p(base + room), ctypes.c_size_t(page), 0) == 0
        held.append((memory, base + room))
        return base + room - len(data)

    yield place
    for _, forbidden in held:
        _libc.mprotect(ctypes.c_void_p(forbidden), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ)


@pytest.fixture
def with_threads() -> Iterator[Callable[[int], None]]:
    """with_threads(n): compute with n threads until the test ends."""
    before = runtime.threads()
    yield runtime.set_threads
    runtime.set_threads(before)
