"""A file of random bytes that ends in the middle of a page, and a check that nothing is leaked."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

SIZE = 3_000_017


@dataclass(frozen=True)
class Sample:
    path: Path
    data: bytes


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    data = np.random.default_rng(11).integers(0, 256, SIZE, dtype=np.uint8).tobytes()
    path = tmp_path_factory.mktemp("stream") / "sample.bin"
    path.write_bytes(data)
    return Sample(path, data)


@pytest.fixture(scope="session")
def bytes_at() -> Callable[[int, int], bytes]:
    return ctypes.string_at


def open_descriptors() -> int:
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    return len(os.listdir(folder))


@pytest.fixture
def nothing_leaks() -> Iterator[None]:
    """Threads and descriptors after the test are those before it."""
    gc.collect()
    threads, descriptors = threading.active_count(), open_descriptors()
    yield
    gc.collect()
    assert threading.active_count() == threads
    assert open_descriptors() == descriptors
