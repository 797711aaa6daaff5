"""What the disk can do, and which queue depth and request size get it: the basis of stream/defaults.py.

    python benchmarks/disk.py DIRECTORY            uses the large files there, or makes one of random bytes
    python benchmarks/disk.py DIRECTORY --quick    only the reader against plain threads, in pairs

Three parts, all with direct reads (the page cache is never measured):
1. plain threads, sequential and expert-like (17.5 MB runs at random places), over depths and request sizes;
2. kimistream's reader against plain threads with the same depth and request size, paired, medians;
3. how long an expert read takes while the tape's queue is full, over the same choices.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from kimistream.stream.arena import Arena
from kimistream.stream.defaults import REQUEST_BYTES, THREADS_PER_DRIVE
from kimistream.stream.reader import Reader
from kimistream.stream.requests import EXPERT, KIND_EXPERT, KIND_TAPE, TAPE

MB = 1 << 20
EXPERT_BYTES = 17_547_264
Piece = tuple[int, int, int]  # file, offset, bytes


def sequential(sizes: list[int], request: int, start: int = 0) -> Iterator[Piece]:
    """All files from `start` on, piece by piece, over and over."""
    while True:
        for file, size in enumerate(sizes):
            for offset in range(start, size - request + 1, request):
                yield file, offset, request
        start = 0


def expert_like(sizes: list[int], request: int, seed: int) -> Iterator[Piece]:
    """Runs of an expert's size at random unaligned places, widened, each cut into pieces."""
    rng = random.Random(seed)
    while True:
        file = rng.randrange(len(sizes))
        first = rng.randrange(sizes[file] - EXPERT_BYTES - 8192) // 4096 * 4096
        end = -(-(first + EXPERT_BYTES) // 4096) * 4096
        for offset in range(first, end, request):
            yield file, offset, min(request, end - offset)


def plain_rate(paths: list[Path], pieces: Iterator[Piece], depth: int, seconds: float) -> float:
    """Bytes per second of `depth` plain threads reading `pieces` with O_DIRECT."""
    fds = [os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0)) for path in paths]
    lock, done = threading.Lock(), [0]
    with Arena(depth * 17 * MB) as arena:
        arena.touch()
        stop = time.perf_counter() + seconds

        def work(number: int) -> None:
            area = arena.view(number * 17 * MB, 17 * MB)
            while time.perf_counter() < stop:
                with lock:
                    file, offset, nbytes = next(pieces)
                got = os.preadv(fds[file], [area[:nbytes]], offset)
                with lock:
                    done[0] += got
            area.release()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(depth)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        passed = time.perf_counter() - started
    for fd in fds:
        os.close(fd)
    return done[0] / passed


def reader_rate(paths: list[Path], sizes: list[int], depth: int, request: int, seconds: float) -> float:
    """Bytes per second of kimistream's reader fed as the tape feeds it: blocks of 8 MB, four at a time."""
    block, ring = 8 * MB, 4
    with Reader(paths, threads=depth, request_bytes=request) as reader, Arena(ring * block) as arena:
        arena.touch()
        places = sequential(sizes, block)
        stop = time.perf_counter() + seconds
        started = time.perf_counter()
        tickets = []
        for i in range(ring):
            file, offset, nbytes = next(places)
            area = arena.view(i * block, block)
            tickets.append(reader.submit([(file, offset, nbytes, area)], TAPE, KIND_TAPE))
        i = done = 0
        while time.perf_counter() < stop:
            tickets[i % ring].wait()
            done += block
            file, offset, nbytes = next(places)
            area = arena.view(i % ring * block, block)
            tickets[i % ring] = reader.submit([(file, offset, nbytes, area)], TAPE, KIND_TAPE)
            i += 1
        passed = time.perf_counter() - started
    return done / passed


def overtaking(
    paths: list[Path], sizes: list[int], depth: int, request: int, count: int
) -> tuple[float, float]:
    """Seconds of an expert read (alone, with the tape's queue full): medians."""
    ring, block = 16, 8 * MB
    size = -(-EXPERT_BYTES // 4096) * 4096 + 4096
    seconds: list[list[float]] = [[], []]
    with Reader(paths, threads=depth, request_bytes=request) as reader, Arena(ring * block + size) as arena:
        arena.touch()
        rng = random.Random(7)
        for loaded in (0, 1):
            places = sequential(sizes, block)
            for _ in range(count):
                tickets = []
                if loaded:
                    for i in range(ring):
                        file, offset, nbytes = next(places)
                        area = arena.view(i * block, block)
                        tickets.append(reader.submit([(file, offset, nbytes, area)], TAPE, KIND_TAPE))
                    tickets[0].wait()
                file = rng.randrange(len(sizes))
                start, nbytes, lead = reader.span(rng.randrange(sizes[file] - size), EXPERT_BYTES)
                started = time.perf_counter()
                area = arena.view(ring * block, nbytes)
                reader.submit([(file, start, lead + EXPERT_BYTES, area)], EXPERT, KIND_EXPERT).wait()
                seconds[loaded].append(time.perf_counter() - started)
                for ticket in tickets:
                    ticket.wait()
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def files_of(directory: Path) -> list[Path]:
    """The large files of a directory; one of random bytes is made where there are none."""
    found = sorted(path for path in directory.iterdir() if path.is_file() and path.stat().st_size >= 256 * MB)
    if not found:
        path = directory / "kimistream-disk.bin"
        print(f"writing {path} (4 GiB of random bytes) ...", flush=True)
        with path.open("wb") as out:
            for _ in range(256):
                out.write(os.urandom(16 * MB))
            os.fsync(out.fileno())
        found = [path]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--quick", action="store_true", help="only part 2, with the defaults")
    options = parser.parse_args()
    paths = files_of(options.directory)
    sizes = [path.stat().st_size // 4096 * 4096 for path in paths]
    seconds = options.seconds
    print(f"{len(paths)} files, {sum(sizes) / 1e9:.1f} GB; direct reads; GB/s\n")
    if not options.quick:
        requests = [MB // 4, MB // 2, MB, 2 * MB, 4 * MB, 8 * MB, 16 * MB]
        for name in ("sequential", "expert-like"):
            print(f"{name:11s} depth " + "".join(f"{r / MB:>8g}MB" for r in requests))
            for depth in (1, 2, 4, 8, 12, 16, 32):
                row = []
                for request in requests:
                    seed = depth * 100 + request // 4096
                    start = random.Random(seed).randrange(sizes[0] // 2) // 4096 * 4096
                    pieces = (
                        sequential(sizes, request, start)
                        if name == "sequential"
                        else expert_like(sizes, request, seed)
                    )
                    row.append(plain_rate(paths, pieces, depth, seconds))
                print(f"{'':11s} {depth:5d} " + "".join(f"{r / 1e9:10.2f}" for r in row), flush=True)
            print()
        print("one expert read: alone / behind a full tape queue")
        for depth in (4, 8, 12, 16, 32):
            for request in (MB // 2, MB, 2 * MB, 4 * MB, 8 * MB):
                alone, loaded = overtaking(paths, sizes, depth, request, 15)
                print(
                    f"  depth {depth:2d} x {request / MB:3g} MB: {alone * 1e3:6.1f} ms {loaded * 1e3:6.1f} ms"
                )
        print()
    ratios = []
    depth, request = THREADS_PER_DRIVE, REQUEST_BYTES
    print(f"plain threads, kimistream's reader, plain threads: depth {depth}, {request / MB:g} MB")
    for _ in range(5):
        before = plain_rate(paths, sequential(sizes, request), depth, seconds)
        ours = reader_rate(paths, sizes, depth, request, seconds)
        after = plain_rate(paths, sequential(sizes, request), depth, seconds)
        ratios.append(2 * ours / (before + after))
        print(f"  {before / 1e9:.2f}  {ours / 1e9:.2f}  {after / 1e9:.2f}  ratio {ratios[-1]:.3f}")
    print(f"reader / plain, median of 5 pairs: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
