"""How fast `verify --deep` reads, against what bounds it: the disk's direct reads, and sha256 on all cores.

    python benchmarks/verify.py CHECKPOINT [--rounds 3]

Each round measures all three in turn, so that a busy machine slows them alike: direct reads by the engine's
reader (its request size and depth, nothing computed), sha256 on all cores at once (on an idle machine: one
core's rate times the cores), and the deep check itself (hash, marks, scan of every number). Prints a line a
round and the median share of the lower bound. The checkpoint should be larger than a few seconds of reading,
in at least as many files as there are cores. The page cache is not involved: reads are direct, and the run
says so when they are not.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import threading
import time
from pathlib import Path

from kimistream.engine.deep import DeepCheck, cores, judge
from kimistream.engine.verify import inspect
from kimistream.stream.arena import Arena
from kimistream.stream.reader import Reader
from kimistream.stream.requests import KIND_TAPE, TAPE


def sha256_rate(threads: int, seconds: float = 2.0) -> float:
    """Bytes per second of sha256 on so many cores together, on more memory than the caches hold."""
    data, piece = memoryview(bytearray(128 << 20)), 4 << 20
    done = [0] * threads
    started = time.perf_counter()

    def work(mine: int) -> None:
        digest = hashlib.sha256()
        while time.perf_counter() - started < seconds:
            at = done[mine] % len(data)
            digest.update(data[at : at + piece])
            done[mine] += piece

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done) / (time.perf_counter() - started)


def direct_rate(paths: list[Path], seconds: float = 3.0) -> float:
    """Bytes per second of the engine's reader, all files in turn from front to back, nothing computed."""
    block, depth = 8 << 20, 4
    places = [(f, at) for f, path in enumerate(paths) for at in range(0, path.stat().st_size - block, block)]
    with Reader(paths, notice=print) as reader, Arena(depth * block) as arena:
        arena.touch()
        tickets, done = [], 0
        started = time.perf_counter()
        for n, (file, at) in enumerate(places):
            if n >= depth:
                tickets[n - depth].wait()
                done += block
            if time.perf_counter() - started > seconds:
                break
            view = arena.view(n % depth * block, block)
            tickets.append(reader.submit([(file, at, block, view)], TAPE, KIND_TAPE))
        elapsed = time.perf_counter() - started
        for ticket in tickets:
            ticket.wait()
    return done / elapsed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int)
    options = parser.parse_args()
    shares = []
    for _ in range(options.rounds):
        inspected = inspect(options.checkpoint)
        paths = [path for path in inspected.paths.values() if path.suffix == ".safetensors"]
        disk = direct_rate(paths)
        hashing = sha256_rate(cores())
        check = DeepCheck(inspected, workers=options.workers, note=print)
        started, spent = time.perf_counter(), time.process_time()
        deep = check.run()
        elapsed, spent = time.perf_counter() - started, time.process_time() - spent
        rate = inspected.nbytes / elapsed
        wrong = [finding for finding in judge(inspected, deep) if not finding.harmless]
        shares.append(rate / min(disk, hashing))
        print(
            f"disk {disk / 1e9:.2f} GB/s, sha256 {hashing / 1e9:.2f} GB/s on {cores()} cores, "
            f"verify --deep {rate / 1e9:.2f} GB/s: {100 * shares[-1]:.0f} % of the lower; {len(wrong)} findings; "
            f"{1e9 * spent / inspected.nbytes:.2f} CPU seconds per GB, {spent / elapsed:.1f} cores busy"
        )
    print(f"median {100 * statistics.median(shares):.0f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
