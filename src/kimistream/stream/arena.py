"""One run of anonymous memory: page-aligned, outside Python's heap, with a fixed address.

Knows: how to map it, how to make the pages real early and in parallel, how to give them back.
Does not know: what is put into it.

Fresh pages cost up to 4 seconds per GB on virtual machines when they are touched first, so whoever owns an
arena calls `touch` once, before the work is timed. Huge pages are asked for: they make the first touch of
memory that the host has already given about five times cheaper, and never make more resident than the
arena's own size, because the mapping ends where the arena ends.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from collections.abc import Callable

import numpy as np

from kimistream.errors import BudgetError
from kimistream.stream.defaults import ALIGNMENT

_HUGE = 2 << 20
_TOUCH_STEP = 32 << 20


class Arena:
    """`nbytes` of private anonymous memory (rounded up to whole pages); zero until written."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
        try:
            self._map = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise BudgetError(
                f"the system does not give {self.nbytes:,} bytes of memory in one piece: {why}",
                "Give a smaller `--memory`; `ulimit -v` shows whether a limit is set.",
            ) from None
        if self.nbytes >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel built without transparent huge pages
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._bytes: np.ndarray | None = np.frombuffer(self._map, dtype=np.uint8)
        self._memory: memoryview | None = memoryview(self._map)
        self.address = int(self._bytes.ctypes.data)

    def view(self, offset: int, nbytes: int) -> memoryview:
        """The bytes `offset : offset + nbytes`, writable. Valid until `close`."""
        if self._memory is None:
            raise RuntimeError("the arena is closed")
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise RuntimeError(f"view {offset}+{nbytes} is outside the arena of {self.nbytes} bytes")
        return self._memory[offset : offset + nbytes]

    def array(self, offset: int, nbytes: int) -> np.ndarray:
        """The same bytes as a uint8 array."""
        if self._bytes is None:
            raise RuntimeError("the arena is closed")
        return self._bytes[offset : offset + nbytes]

    def touch(self, threads: int = 4, progress: Callable[[int], None] | None = None) -> float:
        """Make every page resident, writing zeros (so: before anything is stored). Returns seconds.

        progress: called in this thread now and then with the bytes touched so far. A KeyboardInterrupt, or
        whatever progress raises, ends it within a fraction of a second.
        """
        if self._bytes is None:
            raise RuntimeError("the arena is closed")
        started = time.perf_counter()
        pages = self._bytes[::ALIGNMENT]
        step = _TOUCH_STEP // ALIGNMENT
        parts = iter([pages[i : i + step] for i in range(0, len(pages), step)])  # shared: next() is atomic
        lock, done = threading.Lock(), [0]

        def work() -> None:
            for part in parts:
                part.fill(0)
                with lock:
                    done[0] += len(part)
                if progress is not None and threading.current_thread() is caller:
                    progress(done[0] * ALIGNMENT)

        caller = threading.current_thread()
        count = max(0, min(threads, -(-len(pages) // step)) - 1)
        workers = [threading.Thread(target=work, daemon=True) for _ in range(count)]
        try:
            for worker in workers:
                worker.start()
            work()
        finally:
            for _ in parts:  # after an exception: leave nothing to do
                pass
            for worker in workers:
                if worker.ident is not None:
                    worker.join()
        return time.perf_counter() - started

    def close(self) -> None:
        """Give the memory back. Views handed out must not be used afterwards."""
        if self._memory is None:
            return
        self._bytes = None
        self._memory.release()
        self._memory = None
        try:
            self._map.close()
        except BufferError:  # a view is still alive somewhere: free the pages, leave the addresses
            if hasattr(mmap, "MADV_DONTNEED"):
                self._map.madvise(mmap.MADV_DONTNEED)

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
