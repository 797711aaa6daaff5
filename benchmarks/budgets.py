"""Never worse with more memory: s/token over budgets from the least to nearly all of the machine's memory.

usage: python benchmarks/budgets.py DIR [--rounds 3] [--tokens 6] [--pack FILE]
"""

from __future__ import annotations

import numpy as np

from common import decode, median, opened, parser, real_width
from kimistream.budget import default_budget, format_size
from kimistream.engine.model import Model


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--tokens", type=int, default=6)
    arguments = options.parse_args()
    checkpoint = real_width(arguments.directory)

    def least() -> int:
        # asked anew each time: this process holds a little more after each model it has had open
        return Model.least_budget(checkpoint, context=64, prompt=1, pack=arguments.pack) + (12 << 20)

    most = default_budget().nbytes
    budgets = [least(), *(int(b) for b in np.linspace(least(), most, 6)[1:])]
    seconds: dict[int, list[float]] = {budget: [] for budget in budgets}
    for _ in range(arguments.rounds):
        for budget in budgets:  # in turn, so that a slow minute touches all of them
            with opened(checkpoint, max(budget, least()), pack=arguments.pack) as model:
                seconds[budget].append(decode(model, arguments.tokens, warm=4).seconds / arguments.tokens)
    previous = float("inf")
    for budget in budgets:
        now = median(seconds[budget])
        spread = max(seconds[budget]) - min(seconds[budget])
        worse = now > previous * 1.05 + spread
        print(
            f"  {format_size(budget):>9}: {now:.3f} s/token (spread {spread:.3f}) {'NOT MET' if worse else 'ok'}"
        )
        previous = min(previous, now)


if __name__ == "__main__":
    main()
