"""The streaming layer's measured defaults, in one place.

Knows: numbers, each with its reason; the measurements behind them are in docs/LEARNED.md ("Stream").
Does not know: who uses them. All of them are options of the classes that take them.
"""

from __future__ import annotations

ALIGNMENT = 4096
"""Bytes: direct reads start, end and land on multiples of this (a page; every sector size divides it)."""

REQUEST_BYTES = 1 << 20
"""One read of the operating system. Threads x request bytes are in flight: what an expert read waits for."""

THREADS_PER_DRIVE = 8
"""Reader threads, and so the queue depth, of each drive."""

MAX_REQUEST_BYTES = 256 << 20
"""No single read asks for more (systems refuse or cut reads of 1 GiB or 2 GiB)."""

BLOCK_BYTES = 8 << 20
"""One block of the tape in a small ring."""

RESIDENT_BLOCK_BYTES = 32 << 20
"""One block of a tape that is all in memory: fewer and larger pieces of work."""

RING_BLOCKS = 8
"""Buffers of a ring that keeps a disk busy. No budget gets fewer: with 3 the disk ran at four fifths of its rate."""

EXPERT_SLOTS = 6
"""Expert slots that keep a disk busy, also the fewest; more only help as a cache, worth less than pinned blocks."""

GUESSES = 8
"""Experts read at once ahead of the router: what a disk brings while a layer's attention is computed."""
