"""The streaming layer's measured defaults, in one place.

Knows: numbers, each with its reason; the measurements behind them are in docs/LEARNED.md ("Stream").
Does not know: who uses them. All of them are options of the classes that take them.
"""

from __future__ import annotations

ALIGNMENT = 4096
"""Bytes: direct reads start, end and land on multiples of this (the page size; every disk sector size divides it)."""

REQUEST_BYTES = 1 << 20
"""One read of the operating system. Threads x request bounds the bytes in flight, which an expert read waits for."""

THREADS_PER_DRIVE = 12
"""Reader threads, and so the queue depth, of each drive."""

MAX_REQUEST_BYTES = 256 << 20
"""No single read asks for more (systems refuse or cut reads of 1 GiB or 2 GiB)."""

BLOCK_BYTES = 8 << 20
"""One block of the tape in a small ring."""

RING_BLOCKS = 4
"""Buffers of the smallest ring that keeps a disk busy."""
