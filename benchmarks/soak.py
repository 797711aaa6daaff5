"""Two hundred tokens on a small model with Ctrl-C at random moments: nothing may grow, nothing may stay.

usage: python benchmarks/soak.py [CHECKPOINT] [--tokens 200]

Prints resident size, threads and descriptors after each round of 20 tokens, and whether the tokens stayed
the same.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import threading

from common import verdict
from kimistream.budget import current_rss
from kimistream.demo import path as demo_path
from kimistream.engine.model import Model


def round_of(checkpoint: str, tokens: int, seed: int) -> list[int]:
    """Generate `tokens` tokens; before each model is closed one generation is interrupted at a random moment."""
    rng = random.Random(seed)
    with Model.open(checkpoint, memory="1GB", context=128) as model:
        timer = threading.Timer(rng.uniform(0.001, 0.3), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            for _ in range(50):
                list(model.generate([1, 2, 3], max_tokens=20, ignore_eos=True))
            timer.join()
        except KeyboardInterrupt:
            pass
        timer.cancel()
        timer.join()
        return [r.id for r in model.generate([5, 6, 7], max_tokens=tokens, ignore_eos=True)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("checkpoint", nargs="?", default=str(demo_path()))
    options.add_argument("--tokens", type=int, default=200)
    arguments = options.parse_args()
    want = None
    first = (0, 0, 0)
    for n in range(arguments.tokens // 20):
        got = round_of(arguments.checkpoint, 20, n)
        want = want or got
        gc.collect()
        now = (current_rss(), threading.active_count(), len(os.listdir("/proc/self/fd")))
        # the first rounds fill what Python keeps for reuse
        first = now if n <= 2 else first
        print(f"  round {n + 1}: {now[0] / 1e6:.1f} MB, {now[1]} threads, {now[2]} descriptors", flush=True)
        if got != want:
            print("NOT MET: the tokens changed")
    verdict("MB grown since the third round", (now[0] - first[0]) / 1e6, 8, least=False)
    verdict("threads more", now[1] - first[1], 0, least=False)
    verdict("descriptors more", now[2] - first[2], 0, least=False)


if __name__ == "__main__":
    main()
