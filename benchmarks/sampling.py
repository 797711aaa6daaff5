"""What choosing one token costs with Kimi K3's vocabulary: CPU milliseconds, median and worst of many.

    python benchmarks/sampling.py [--vocab 163840] [--repeat 200]

Logits are either spread like a language model's (a few likely tokens over a wide bell) or flat (every token
takes part: the most work there can be).
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from kimistream.engine.options import SamplingOptions
from kimistream.engine.sampling import Sampler

SETTINGS: dict[str, dict[str, object]] = {
    "greedy": {},
    "temperature 1": {"temperature": 1.0},
    "temperature 0.6": {"temperature": 0.6},
    "top_k 40": {"temperature": 1.0, "top_k": 40},
    "top_p 0.95": {"temperature": 1.0, "top_p": 0.95},
    "min_p 0.05": {"temperature": 1.0, "min_p": 0.05},
    "top_k 40, top_p 0.95": {"temperature": 1.0, "top_k": 40, "top_p": 0.95},
    "all penalties, 32,768-token prompt": {
        "temperature": 1.0,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
    },
    "logprobs 20": {"temperature": 1.0, "top_p": 0.95, "logprobs": 20},
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab", type=int, default=163_840)
    parser.add_argument("--repeat", type=int, default=200)
    arguments = parser.parse_args()
    vocab, repeat = arguments.vocab, arguments.repeat
    rng = np.random.default_rng(1)
    model = rng.normal(0, 3, vocab).astype(np.float32)
    model[rng.integers(0, vocab, 20)] += 12
    shapes = {"model": model, "flat": rng.random(vocab).astype(np.float32)}
    prompt = rng.integers(0, vocab, 32_768, np.int32)
    print(f"{vocab} logits, {repeat} tokens; milliseconds of one thread per token")
    print(f"{'':36}{'model':>8}{'worst':>8}{'flat':>8}{'worst':>8}")
    for name, values in SETTINGS.items():
        line = f"{name:36}"
        for logits in shapes.values():
            sampler = Sampler(SamplingOptions.of({"seed": 1, **values}), prompt, vocab=vocab)
            seconds = []
            for n in range(repeat + 1):
                start = time.thread_time()
                sampler(logits, len(prompt) + n - 1)
                seconds.append(time.thread_time() - start)
            line += f"{np.median(seconds[1:]) * 1e3:8.2f}{max(seconds[1:]) * 1e3:8.2f}"
        print(line)


if __name__ == "__main__":
    main()
