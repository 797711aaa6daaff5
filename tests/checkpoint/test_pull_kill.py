"""Killed (SIGKILL) at twenty random moments, a pull ends with the right bytes and never shows wrong ones."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

from hub_server import FakeHub
from pull_fixtures import held, pull, some_files
from test_pull import _no_outside  # noqa: F401

KILLS = 20
SOURCE = Path(__file__).parents[2] / "src"

# Imports once, then forks a pull for each line it reads ("SECONDS") and kills it after so long.
PARENT = """
import os, signal, sys, time
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import huggingface_hub.hf_api, huggingface_hub.file_download
from pull_fixtures import pull
endpoint, directory = sys.argv[3:]
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        pull(endpoint, __import__("pathlib").Path(directory))
        os._exit(0)
    time.sleep(float(line))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    print("killed" if os.WIFSIGNALED(status) else "ended", flush=True)
"""


def test_a_pull_killed_at_twenty_random_moments_ends_with_the_right_bytes(tmp_path):
    rnd = random.Random(20)
    hub = FakeHub(some_files(size=400_000), limit=2000)
    hub.chunk, hub.delay = 4096, 0.02
    total = sum(map(len, hub.files.values()))
    environment = os.environ | {"HF_HUB_DISABLE_XET": "1"}
    with hub.serve() as endpoint:
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(SOURCE), str(Path(__file__).parent), endpoint, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert parent.stdout.readline() == "ready\n"
        killed = rounds = 0
        while killed < KILLS and rounds < 3 * KILLS:
            rounds += 1
            parent.stdin.write(f"{rnd.uniform(0.02, 0.5)}\n")
            parent.stdin.flush()
            ended = parent.stdout.readline() == "ended\n"
            for name, data in held(tmp_path).items():
                assert hub.files[name] == data, f"{name} was taken for whole"
            if ended:  # it was faster than the killer: once more from nothing
                assert held(tmp_path) == hub.files
                shutil.rmtree(tmp_path)
                hub.sent = 0
            killed += not ended
        parent.stdin.close()
        assert parent.wait(10) == 0
        assert killed == KILLS, "the pulls ended before they could be killed"
        hub.delay = 0
        pull(endpoint, tmp_path)
    assert held(tmp_path) == hub.files
    # what one kill loses is what was under way in the sockets: without resuming it would be whole files
    assert hub.sent < total + KILLS * 3 * 90_000 * 2
