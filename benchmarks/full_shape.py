"""The full shape of Kimi K3 within 2 GB: open, plan, two tokens, the same logits at every budget.

usage: python benchmarks/full_shape.py DIR [--budgets 2,4,8,16] [--cgroup]

DIR holds (or will hold) `kimistream synth DIR --full --sparse`: real sizes, large matrices as holes. Reading
holes is not reading a disk: the seconds here say nothing about a real drive, the bytes and the memory do.
--cgroup runs the 2 GB case inside a memory cgroup (v1 or v2, needs root) without swap.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from common import parser, verdict
from kimistream.checkpoint.synth import synth, synth_sizes

PROMPT = "11,21,31,41,51,61,71,81"
OPEN = """
import time
from kimistream.budget import current_rss, peak_rss
from kimistream.checkpoint.table import Checkpoint
before, started = current_rss(), time.perf_counter()
checkpoint = Checkpoint.open({!r})
print(time.perf_counter() - started, current_rss() - before, peak_rss() - before)
"""


def run(directory: Path, memory: str, prefix: list[str]) -> tuple[str, dict[str, float]]:
    """Two tokens at a budget: the digest of all logits, and the summary."""
    with tempfile.TemporaryDirectory() as scratch:
        logits = Path(scratch) / "logits.npy"
        command = [sys.executable, "-m", "kimistream", "run", str(directory), "--ids", PROMPT, "-n", "2"]
        command += ["--memory", memory, "--json", "--ignore-eos", "--logits", str(logits), "--quiet"]
        done = subprocess.run([*prefix, *command], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the run at {memory} ended with code {done.returncode}")
        digest = hashlib.sha256(np.load(logits).tobytes()).hexdigest()
    return digest, json.loads(done.stdout.splitlines()[-1])["summary"]


def memory_cgroup(nbytes: int) -> list[str]:
    """A command prefix that runs the rest inside a memory cgroup of `nbytes` without swap."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    group = (v1 if v1.is_dir() else v2) / "kimistream-benchmark"
    group.mkdir(exist_ok=True)
    if v1.is_dir():
        (group / "memory.limit_in_bytes").write_text(str(nbytes))
        swappiness = group / "memory.swappiness"
        if swappiness.exists():
            swappiness.write_text("0")
    else:
        (group / "memory.max").write_text(str(nbytes))
        (group / "memory.swap.max").write_text("0")
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]


def least(directory: Path) -> int:
    """The least budget for this request, as the refusal of 1 MB tells it."""
    command = [sys.executable, "-m", "kimistream", "plan", str(directory), "--context", "11"]
    command += ["--prompt-tokens", "8", "--json", "--no-measure", "--memory", "64GB"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return int(json.loads(done.stdout)["least_bytes"])


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--budgets", default="2,4,8,16", help="GB")
    options.add_argument("--cgroup", action="store_true")
    arguments = options.parse_args()
    directory = arguments.directory
    if not (directory / "config.json").exists():
        synth(directory, synth_sizes(full=True), sparse=True)
    print(f"{directory}: {sum(p.stat().st_size for p in directory.iterdir()):,} bytes of files")

    done = subprocess.run(
        [sys.executable, "-c", OPEN.format(str(directory))], stdout=subprocess.PIPE, text=True, check=True
    )
    seconds, more, peak = map(float, done.stdout.split())
    verdict("seconds to open", seconds, 5, least=False)
    verdict("MB more resident after opening", more / 1e6, 150, least=False)
    print(f"  ({peak / 1e6:.0f} MB at the peak)")

    smallest = least(directory)
    print(f"least budget: {smallest / 1e9:.3f} GB")
    budgets = [f"{-(-smallest // 10**6) + 1}MB", *(f"{gb}GB" for gb in arguments.budgets.split(","))]
    digests = {}
    for memory in budgets:
        prefix = memory_cgroup(2 * 10**9) if arguments.cgroup and memory == "2GB" else []
        started = time.perf_counter()
        digests[memory], summary = run(directory, memory, prefix)
        where = " inside a memory cgroup" if prefix else ""
        print(
            f"{memory}{where}: {time.perf_counter() - started:.0f} s, "
            f"first token {summary['first_token_seconds']:.1f} s, "
            f"then {summary['seconds_per_token']:.1f} s; {summary['bytes_per_token'] / 1e9:.1f} GB per token; "
            f"logits {digests[memory][:16]}",
            flush=True,
        )
        verdict(
            "peak resident GB", summary["peak_rss_bytes"] / 1e9, summary["budget_bytes"] / 1e9, least=False
        )
    same = len(set(digests.values())) == 1
    print(f"one digest over {', '.join(budgets)}: {'ok' if same else 'NOT MET'}")
    if arguments.cgroup:
        for root in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
            if (root / "kimistream-benchmark").is_dir():
                os.rmdir(root / "kimistream-benchmark")


if __name__ == "__main__":
    main()
