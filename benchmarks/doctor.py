"""Whether doctor's prediction of seconds per token is what `run` then measures.

    python benchmarks/doctor.py CHECKPOINT [--budgets 1GB,4GB,8GB] [--tokens 12] [--rounds 2]

For each budget and round: rates measured and prediction made by `doctor --json`, then `run` as a process of
its own with that budget, and the quotient of the two. The checkpoint should have real widths (`kimistream
synth`) and be larger than the budgets. The first token, which pays for the prompt, does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from kimistream.budget import format_size, parse_size
from kimistream.checkpoint.table import Checkpoint
from kimistream.engine.doctor import predict
from kimistream.engine.drive import DriveRates
from kimistream.engine.sizes import Request


def kimistream(*arguments: str) -> str:
    command = [sys.executable, "-m", "kimistream", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--budgets", default="1GB,4GB,8GB")
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    table = Checkpoint.open(options.checkpoint)
    worst = 0.0
    for text in options.budgets.split(","):
        budget = parse_size(text, "--budgets")
        quotients = []
        for _ in range(options.rounds):
            seen = json.loads(kimistream("doctor", str(options.checkpoint), "--json", "-q"))
            rates = DriveRates(**seen["rates"])
            request = Request(64, None, 4)
            (told,) = predict(table, request, [budget], rates, seen["memory_rate"], budget)
            lines = kimistream(
                "run", str(options.checkpoint), "--ids", "1,2,3,4", "--ignore-eos", "--json", "-q",
                "--max-tokens", str(options.tokens), "--memory", text, "--context", "64",
            ).splitlines()  # fmt: skip
            measured = json.loads(lines[-1])["summary"]["seconds_per_token"]
            quotients.append(measured / told.seconds)
            print(
                f"{text}: predicted {told.seconds:.3f} s/token ({format_size(told.disk_bytes)} read at "
                f"{format_size(rates.sequential)}/s), measured {measured:.3f}: quotient {quotients[-1]:.2f}"
            )
        middle = statistics.median(quotients)
        worst = max(worst, abs(middle - 1))
        print(f"{text}: median quotient {middle:.2f}")
    print(f"the worst is {100 * worst:.0f} % off")
    return 0


if __name__ == "__main__":
    sys.exit(main())
