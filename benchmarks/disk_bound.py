"""Decode while the disk is the limit: is it ever idle, how close to a plain reader, how close to the pass's own bound?

usage: python benchmarks/disk_bound.py DIR [--pairs 5] [--tokens 6] [--pack FILE]

Each round measures a plain direct reader before and after the decode steps; medians over the rounds.
"""

from __future__ import annotations

import numpy as np

from common import decode, median, opened, parser, rate, reader_rate, real_width, verdict
from kimistream.budget import format_size
from kimistream.engine.model import Model


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("--tokens", type=int, default=6)
    arguments = options.parse_args()
    checkpoint = real_width(arguments.directory)

    pack = arguments.pack

    def least() -> int:
        # asked anew each time: this process holds a little more after each model it has had open
        return Model.least_budget(checkpoint, context=64, prompt=1, pack=pack) + (12 << 20)

    with opened(checkpoint, least(), pack=pack) as model:
        tape = int(np.sum(model.tape.blocks.spans))
    # computing alone: everything resident, nothing waited for
    with opened(checkpoint, 20 * 10**9, pack=pack) as model:
        cost = decode(model, arguments.tokens, warm=3)
        computing = (cost.seconds - cost.wait) / arguments.tokens
    print(f"computing alone: {computing:.3f} s/token")
    for label, more in (("least budget", 0), ("half the tape pinned", tape // 2)):
        print(f"{label}: {format_size(least() + more)}")
        empty, against, bound, seconds = [], [], [], []
        for _ in range(arguments.pairs):
            before = reader_rate(checkpoint)
            with opened(checkpoint, least() + more, pack=pack) as model:
                cost = decode(model, arguments.tokens)
            after = reader_rate(checkpoint)
            plain = (before + after) / 2
            idle = cost.starved_seconds + cost.ring_full_seconds + cost.slots_full_seconds
            empty.append(idle / cost.seconds)
            against.append(cost.nbytes / cost.seconds / plain)
            reading = cost.nbytes / plain / arguments.tokens
            per_token = cost.seconds / arguments.tokens
            bound.append(per_token / max(reading, computing))
            seconds.append(per_token)
            print(
                f"    {per_token:.3f} s/token, {format_size(cost.nbytes / arguments.tokens)}/token at "
                f"{rate(cost.nbytes / cost.seconds)}; plain reader {rate(before)} before, {rate(after)} after; "
                f"waited: tape {cost.tape_wait / cost.seconds:.0%}, experts {cost.expert_wait / cost.seconds:.0%}; "
                f"idle: starved {cost.starved_seconds / cost.seconds:.1%}, ring full "
                f"{cost.ring_full_seconds / cost.seconds:.1%}, slots full {cost.slots_full_seconds / cost.seconds:.1%}",
                flush=True,
            )
        print(f"  {median(seconds):.3f} s/token")
        verdict(
            "read queue empty although bytes are wanted, share of decode time",
            median(empty),
            0.05,
            least=False,
        )
        verdict("bytes per second against the plain reader", median(against), 0.90, least=True)
        verdict("s/token against max(read, compute)", median(bound), 1.1, least=False)


if __name__ == "__main__":
    main()
