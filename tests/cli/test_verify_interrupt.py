"""Ctrl-C during `verify --deep`: exit code 130, one message, and the next run goes on where this one was."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TINY = Path(__file__).parents[1] / "data" / "tiny-k3"
SLOW = """
import sys, time
from kimistream.stream import reader
read = reader.system_pread
def slowly(fd, buffers, offset):
    time.sleep(0.3)
    return read(fd, buffers, offset)
reader.system_pread = slowly
from kimistream.cli import main
main()
"""


def verify(directory: Path, *options: str, slow: bool = False) -> subprocess.Popen[str]:
    program = ["-c", SLOW] if slow else ["-m", "kimistream"]
    command = [sys.executable, *program, "verify", str(directory), "--deep", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("workers", ["1", "3"])
def test_an_interrupted_deep_check_ends_with_130_and_is_gone_on_with(tmp_path, workers):
    directory = Path(shutil.copytree(TINY, tmp_path / "tiny"))
    state = directory / ".kimistream" / "verify.json"
    running = verify(directory, "--workers", workers, slow=True)
    until = time.monotonic() + 30
    while not state.exists():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    stopped = time.monotonic()
    out, err = running.communicate(timeout=30)
    assert time.monotonic() - stopped < 5
    assert running.returncode == 130
    assert out == ""
    assert "kimistream: verify stopped\nRun the same command again" in err
    assert "Traceback" not in err
    assert state.exists()

    again = verify(directory)
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    (read,) = re.findall(r"going on with an interrupted check: (\d+) of 9 files were read before", err)
    assert 1 <= int(read) < 9
    assert "every byte read" in out
    assert not state.exists()
