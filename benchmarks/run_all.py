"""`make bench`: the benchmarks that need nothing but this machine, one after the other.

Those that need a large synthetic checkpoint, and what they show, are listed at the end.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ALONE = ("kernels.py", "bands.py", "elementwise.py", "sampling.py", "foresight.py", "soak.py")
WITH_DIRECTORY = {
    "disk.py": "what the disk can do at which depth and request size",
    "disk_bound.py": "decode while the disk is the limit (12 GB, made if absent)",
    "memory_bound.py": "decode with everything resident (the same checkpoint, 18 GB of memory)",
    "budgets.py": "s/token over six budgets (the same checkpoint)",
    "pack.py": "how fast a pack is made, and what it saves (the same checkpoint, 6 GB more)",
    "full_shape.py": "the full shape of Kimi K3 in 2 GB (sparse, about 400 MB on disk)",
}


def main() -> int:
    worst = 0
    for name in ALONE:
        if (HERE / name).exists():
            print(f"== {name}", flush=True)
            worst = max(worst, subprocess.run([sys.executable, HERE / name], check=False).returncode)
    print("\nWith a directory on the drive to measure:")
    for name, what in WITH_DIRECTORY.items():
        print(f"  python benchmarks/{name} DIR   {what}")
    return worst


if __name__ == "__main__":
    sys.exit(main())
