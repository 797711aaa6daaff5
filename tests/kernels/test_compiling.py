"""Kernels compiled by processes of their own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kimistream.kernels.all  # noqa: F401  (declares every kernel)
from kimistream.kernels import folder, runtime

PARENT = """
import os, sys
import kimistream.kernels.all
from kimistream.budget import current_rss
from kimistream.kernels import compiling, runtime
if len(sys.argv) > 1:
    sys.executable = sys.argv[1]
before = current_rss()
seen = []
compiling.compile_apart(2, lambda done, of: (seen.append((done, of)), print("at", done, flush=True)))
print("grown", current_rss() - before)
print("seen", seen[-1:], [done for done, _ in seen] == sorted(done for done, _ in seen))
"""


def kept(name: str, place: Path) -> list[Path]:
    """The files of a compiled kernel."""
    return sorted(place.rglob(f"*.{name}-*"))


@pytest.fixture
def place(tmp_path) -> Path:
    """A folder with all kernels compiled but two, which take some seconds."""
    runtime.compile_all()
    here = tmp_path / folder.FOLDER.name
    shutil.copytree(folder.FOLDER, here)
    (here / "complete").unlink()
    missing = kept("many", here) + kept("bf16_direct", here)
    assert len(missing) >= 4
    for path in missing:
        path.unlink()
    return here


def start(place: Path, *words: str, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, *words],
        env={**os.environ, "NUMBA_CACHE_DIR": str(place.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def workers(place: Path) -> list[int]:
    """Processes that compile into `place` now."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            theirs = (entry / "environ").read_bytes() if b"kernels.compiling" in words else b""
        except OSError:
            continue
        if f"NUMBA_CACHE_DIR={place.parent}".encode() in theirs:
            found.append(int(entry.name))
    return found


def gone(place: Path, seconds: float = 20) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not workers(place):
            return True
        time.sleep(0.05)
    return False


def test_other_processes_compile_what_is_missing_and_take_the_memory_for_it(place):
    parent = start(place)
    out, err = parent.communicate(timeout=300)
    assert parent.returncode == 0, err
    total = len(runtime.declared())
    assert f"seen [({total}, {total})] True" in out
    assert kept("many", place)
    assert kept("bf16_direct", place)
    # what compiling these two leaves behind in a process is many times this
    assert int(re.search(r"grown (-?\d+)", out)[1]) < 2_000_000
    assert not workers(place)


@pytest.mark.parametrize("executable", ["/nonexistent/python", "/bin/false", ""])
def test_without_a_python_to_start_nothing_is_compiled_and_nothing_fails(place, executable):
    parent = start(place, executable)
    out, err = parent.communicate(timeout=300)
    assert parent.returncode == 0, err
    assert "seen [] True" in out
    assert not kept("many", place)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_when_the_caller_ends(place, how):
    parent = start(place, start_new_session=True)
    assert parent.stdout is not None
    parent.stdout.readline()  # they are at work
    assert workers(place)
    os.kill(parent.pid, how)  # not the group: the processes have to notice
    _, err = parent.communicate(timeout=60)
    assert parent.returncode != 0
    assert gone(place)
    assert err.count("Traceback") <= (how == signal.SIGINT)  # the caller's own, never one of theirs
