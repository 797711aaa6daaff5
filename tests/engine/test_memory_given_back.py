"""Models opened one after the other in one process: what each leaves behind is not counted against the next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TINY = Path(__file__).parents[1] / "data" / "tiny-k3"
PROGRAM = """
import sys
from kimistream.budget import current_rss, release_freed
from kimistream.engine.model import Model
from kimistream.engine.sizes import runtime_bytes

closed, held, counted = [], [], []
for _ in range(7):
    with Model.open(sys.argv[1], memory="2GB", context=6000, chunk=4096) as model:
        for _ in model.generate([i % 200 for i in range(4100)], max_tokens=2, ignore_eos=True):
            pass
    closed.append(model)  # whoever keeps a closed model keeps nothing large
    counted.append(runtime_bytes())
    held.append(current_rss())
print(max(held[2:]) - held[1], max(counted[2:]) - counted[1])
"""


def test_the_seventh_model_finds_what_the_second_found():
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(TINY)], stdout=subprocess.PIPE, text=True, check=True, timeout=120
    )
    more, counted = map(int, ended.stdout.split())
    assert more < 8 << 20  # one workspace alone is larger
    assert counted <= 8 << 20  # the step it is rounded to
