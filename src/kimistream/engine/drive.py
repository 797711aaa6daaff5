"""The drive under a directory: what it is, what is free, and how fast the engine's own reads are there.

Knows: mounts, rotating and network drives, direct reads, and a file to measure on where there is none.
Does not know: what is predicted from the rates (estimate), or how they are shown.

Rates are never those of the page cache: reads are direct, and where that is refused the cached pages are
dropped first and the result says so.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kimistream.checkpoint.direct import DirectFile
from kimistream.errors import OutputError
from kimistream.stream.arena import Arena
from kimistream.stream.defaults import BLOCK_BYTES, REQUEST_BYTES, RING_BLOCKS, THREADS_PER_DRIVE
from kimistream.stream.reader import Reader
from kimistream.stream.requests import KIND_TAPE, TAPE, Ticket

EXPERT_BYTES = 17_547_264
"""One expert of the released model: what random reads are made of."""
TRIAL_BYTES = 1 << 30
"""The file that is written where there is nothing to measure on; a quarter of the free space at most."""
TRIAL_SECONDS = 15.0
"""A slow drive gets a smaller one."""
LEAST_TRIAL_BYTES = 64 << 20
_NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs", "afs", "lustre", "beegfs")
)

Place = tuple[int, int, int]
"""(file, offset, bytes)"""


@dataclass(frozen=True, slots=True)
class Drive:
    """What a directory is on. `rotating` and `network` None: the system does not say."""

    directory: Path
    """The directory asked for, or the nearest above it that exists."""
    file_system: str
    device: str
    rotating: bool | None
    network: bool | None
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class DriveRates:
    """Bytes per second. `on`: what was read."""

    sequential: float
    scattered: float
    direct: bool
    request_bytes: int
    depth: int
    on: str


def look_at(directory: Path) -> Drive:
    """The drive under a directory that need not exist yet."""
    place = directory.absolute()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    usage = shutil.disk_usage(place)
    kind, device = _mount(place)
    number = os.stat(place).st_dev
    return Drive(
        place,
        kind or "unknown",
        device or "unknown",
        _rotating(f"{os.major(number)}:{os.minor(number)}", device),
        kind in _NETWORK if kind else None,
        usage.total,
        usage.free,
    )


def _mount(place: Path) -> tuple[str, str]:
    """(file system, device) of the mount that holds `place` (Linux)."""
    best, found = -1, ("", "")
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return found
    real = os.path.realpath(place)
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, after = left.split(), right.split()
        if len(fields) < 5 or len(after) < 2:
            continue
        point = fields[4].encode().decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, found = len(point), (after[0], after[1])
    return found


def _rotating(number: str, device: str, root: Path = Path("/sys")) -> bool | None:
    """Whether any drive under a block device rotates; None where the system does not say."""
    block = root / "dev" / "block" / number
    if not block.exists():
        block = root / "class" / "block" / Path(device).name
    if not block.exists():
        return None
    return _rotates(block.resolve())


def _rotates(block: Path) -> bool | None:
    slaves = block / "slaves"
    below = [_rotates(slave.resolve()) for slave in slaves.iterdir()] if slaves.is_dir() else []
    if below:
        return any(below) if None not in below else True in below or None
    for place in (block, block.parent):  # a partition's queue is its disk's
        with contextlib.suppress(OSError):
            return (place / "queue" / "rotational").read_text().strip() == "1"
    return None


def measure(paths: Sequence[Path], on: str, seconds: float = 2.0) -> DriveRates:
    """Read from these files as the engine does, for `seconds` each in a row and scattered."""
    sizes = [path.stat().st_size for path in paths]
    with Reader(paths) as reader:
        _forget(paths, reader)
        sequential = _rate(reader, _in_a_row(sizes), seconds)
        _forget(paths, reader)
        scattered = _rate(reader, _scattered(sizes), seconds)
        return DriveRates(sequential, scattered, reader.direct, REQUEST_BYTES, THREADS_PER_DRIVE, on)


def _forget(paths: Sequence[Path], reader: Reader) -> None:
    if reader.direct or not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        with contextlib.suppress(OSError):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def _in_a_row(sizes: Sequence[int]) -> Iterator[Place]:
    while True:
        for file, size in enumerate(sizes):
            block = min(BLOCK_BYTES, size)
            for at in range(0, size - block + 1, block):
                yield file, at, block


def _scattered(sizes: Sequence[int]) -> Iterator[Place]:
    chance = random.Random(0)
    while True:
        file = chance.choices(range(len(sizes)), weights=sizes)[0]
        nbytes = min(EXPERT_BYTES, sizes[file])
        yield file, chance.randrange(sizes[file] - nbytes + 1), nbytes


def _rate(reader: Reader, places: Iterator[Place], seconds: float) -> float:
    slot = -(-(EXPERT_BYTES + 8192) // 4096) * 4096
    done, waiting = 0, deque[tuple[Ticket, int]]()
    with Arena(RING_BLOCKS * slot) as arena:
        arena.touch()
        started = time.perf_counter()
        for n, (file, at, nbytes) in enumerate(places):
            if len(waiting) == RING_BLOCKS:
                ticket, size = waiting.popleft()
                ticket.wait()
                done += size
                if time.perf_counter() - started > seconds:
                    break
            start, span, lead = reader.span(at, nbytes)
            view = arena.view(n % RING_BLOCKS * slot, span)
            waiting.append((reader.submit([(file, start, lead + nbytes, view)], TAPE, KIND_TAPE), nbytes))
        elapsed = time.perf_counter() - started
        for ticket, _ in waiting:
            ticket.wait()
    return done / elapsed


@contextlib.contextmanager
def trial_file(directory: Path, free: int, nbytes: int = TRIAL_BYTES) -> Iterator[Path]:
    """A file of random bytes to measure on, gone afterwards. Raises OutputError."""
    nbytes = min(nbytes, free // 4) // REQUEST_BYTES * REQUEST_BYTES
    if nbytes < LEAST_TRIAL_BYTES:
        raise OutputError(
            f"{directory} has {free:,} bytes free, too few to measure the disk "
            f"(needed: {4 * LEAST_TRIAL_BYTES:,})",
            "Make room or name a directory on another disk.",
        )
    path = directory / f".kimistream-doctor-{os.getpid()}"
    block = np.random.default_rng(0).integers(0, 256, 8 << 20, dtype=np.uint8)
    try:
        started, written = time.perf_counter(), 0
        with DirectFile(path) as file:
            while written < nbytes:
                # no two blocks alike: a drive that finds copies must not save the work
                block[:8].view(np.uint64)[0] = written
                file.append(block[: min(len(block), nbytes - written)].data)
                written += min(len(block), nbytes - written)
                slow = time.perf_counter() - started > TRIAL_SECONDS
                if slow and written >= LEAST_TRIAL_BYTES:
                    break
            file.finish()
        yield path
    except OSError as error:
        raise OutputError(
            f"{directory} cannot be measured: {error.strerror}",
            "Name a directory that you may write to, or a checkpoint.",
        ) from None
    finally:
        path.unlink(missing_ok=True)
