"""Decode with everything resident: weights used per second against the rate at which memory can be read.

usage: python benchmarks/memory_bound.py DIR [--pairs 5] [--tokens 10] [--memory 18] [--pack FILE]
"""

from __future__ import annotations

import numpy as np

from common import decode, median, opened, parser, rate, real_width, verdict
from kimistream.engine.estimate import weight_bytes
from kimistream.engine.rates import memory_rate


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("--tokens", type=int, default=10)
    options.add_argument("--memory", type=float, default=18, help="GB")
    arguments = options.parse_args()
    checkpoint = real_width(arguments.directory)
    with opened(checkpoint, int(arguments.memory * 1e9), pack=arguments.pack) as model:
        print(
            f"first touch of memory: {model.touch_seconds:.2f} s for {model.tape.nbytes / 1e9:.1f} GB of tape"
        )
        if not model.plan.resident:
            print("NOT MET: the tape does not fit this budget")
        used = weight_bytes(checkpoint.config, model.plan)
        decode(model, 40, warm=1)  # until the experts met are resident too
        shares = []
        for _ in range(arguments.pairs):
            before = memory_rate()
            cost = decode(model, arguments.tokens)
            limit = (before + memory_rate()) / 2
            busy = cost.seconds - cost.wait
            got = used * arguments.tokens / busy
            shares.append(got / limit)
            print(
                f"    {cost.seconds / arguments.tokens:.3f} s/token ({cost.wait / cost.seconds:.0%} waiting), "
                f"weights {rate(got)}, memory {rate(limit)}; {cost.experts_read} experts read",
                flush=True,
            )
        verdict("weights used per second against the memory read rate", median(shares), 0.75, least=True)
        print(f"  tape {np.sum(model.tape.blocks.nbytes) / 1e9:.2f} GB, {used / 1e9:.2f} GB used per token")


if __name__ == "__main__":
    main()
