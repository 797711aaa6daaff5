"""Making packs: the same bytes whatever happens on the way, and nothing taken for whole that is not (T7)."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import pytest

from kimistream.checkpoint.pack import Pack
from kimistream.checkpoint.table import Checkpoint
from kimistream.engine import pack_cut, pack_pipeline, packing
from kimistream.engine.pack_cut import Cut
from kimistream.engine.pack_verify import PackVerify
from kimistream.engine.packing import Packed, Packing
from kimistream.errors import BudgetError, Interrupted, OutputError, PackError, ReadError

TINY = Path(__file__).parents[1] / "data" / "tiny-k3"
GROUP = 100_000
KILLS = 20


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture(scope="module")
def right(packed) -> str:
    """The sha256 of the pack of the tiny checkpoint in small groups."""
    return sha(packed(TINY, GROUP))


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch):
    monkeypatch.setattr(pack_cut, "GROUP_BYTES", GROUP)
    monkeypatch.setattr(pack_pipeline, "SYNC_SECONDS", 0.0)


def make(out: Path, checkpoint: Path = TINY, **options) -> Packed:
    return Packing(Checkpoint.open(checkpoint), out, **options).run()


class Failing:
    """pwrite that fails, or stops, after so many bytes."""

    def __init__(self, after: int, failure: BaseException | int, short: bool = False) -> None:
        self.left, self.failure, self.short = after, failure, short
        self.lock = threading.Lock()

    def __call__(self, handle: int, view: memoryview, offset: int) -> int:
        with self.lock:
            if self.left <= 0:
                raise (
                    self.failure if isinstance(self.failure, BaseException) else OSError(self.failure, "full")
                )
            self.left -= len(view)
        return os.pwrite(handle, view[: len(view) // 2] if self.short and len(view) > 1 else view, offset)


# ---- the same bytes


@pytest.mark.parametrize(
    "options", [{"threads": 1}, {"threads": 2}, {"direct": False}, {"memory": "20GB"}], ids=str
)
def test_the_bytes_do_not_depend_on_threads_memory_or_the_way_of_writing(tmp_path, right, options):
    got = make(tmp_path / "a.pack", **options)
    assert sha(got.path) == right
    assert names(tmp_path) == ["a.pack"]
    assert (got.earlier_bytes, got.nbytes) == (0, got.path.stat().st_size)


def test_with_the_least_memory_the_bytes_are_the_same_and_with_less_the_least_is_told(tmp_path, right):
    with pytest.raises(BudgetError, match="packing this checkpoint needs at least") as caught:
        make(tmp_path / "a.pack", memory=10_000_000)
    assert names(tmp_path) == []
    assert sha(make(tmp_path / "a.pack", memory=caught.value.least_bytes + (9 << 20)).path) == right


def test_the_peak_memory_stays_within_the_budget(tmp_path):
    """In a process of its own, over a checkpoint that is larger than what may be in memory at once."""
    code = (
        "import sys; from pathlib import Path; from kimistream.checkpoint.synth import synth, synth_sizes;"
        "from kimistream.checkpoint.table import Checkpoint; from kimistream.engine.packing import Packing;"
        "from kimistream.budget import peak_rss, reset_peak_rss; d = Path(sys.argv[1]);"
        "synth(d / 'c', synth_sizes(layers=2, experts=1, vocab=16384, hidden=4096));"
        "reset_peak_rss(); Packing(Checkpoint.open(d / 'c'), d / 'p', memory='360MB').run();"
        "print(peak_rss(), sum(f.stat().st_size for f in (d / 'c').iterdir()), (d / 'p').stat().st_size)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak, size, made = map(int, done.stdout.split())
    assert size > 500e6
    assert made < 0.8 * size
    assert peak <= 360e6


def test_short_writes_and_a_drive_that_refuses_direct_writes_do_not_change_a_byte(tmp_path, right):
    assert sha(make(tmp_path / "a.pack", pwrite=Failing(1 << 40, 0, short=True)).path) == right

    def refusing(handle: int, view: memoryview, offset: int) -> int:
        if fcntl.fcntl(handle, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0):
            raise OSError(errno.EINVAL, "refused")
        return os.pwrite(handle, view, offset)

    assert sha(make(tmp_path / "b.pack", pwrite=refusing).path) == right


# ---- stopped on the way

# Imports once, then forks a pack for each line it reads ("SECONDS") and kills it after so long (0: never).
PARENT = """
import os, signal, sys, time
from pathlib import Path
from kimistream.checkpoint.table import Checkpoint
from kimistream.engine import pack_cut, pack_pipeline, packing
from kimistream.engine.model import prepare_kernels
pack_cut.GROUP_BYTES, pack_pipeline.SYNC_SECONDS = int(sys.argv[3]), 0.0
prepare_kernels(1)

def slow(handle, view, offset):
    time.sleep(0.004)
    return os.pwrite(handle, view, offset)

print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            packing.Packing(Checkpoint.open(sys.argv[1]), sys.argv[2], threads=1, pwrite=slow).run()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if float(line):
        time.sleep(float(line))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    print("killed" if os.WIFSIGNALED(status) else f"ended {os.WEXITSTATUS(status)}", flush=True)
"""


def test_a_pack_killed_at_twenty_random_moments_ends_with_the_same_bytes(tmp_path, right):
    rnd = random.Random(21)
    out = tmp_path / "a.pack"
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(TINY), str(out), str(GROUP)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    def one(seconds: float) -> str:
        process.stdin.write(f"{seconds}\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    started = time.monotonic()
    assert one(0) == "ended 0"
    whole_time = time.monotonic() - started
    assert sha(out) == right
    out.unlink()
    killed = rounds = 0
    begun: set[int] = set()
    while killed < KILLS and rounds < 5 * KILLS:
        rounds += 1
        word = one(rnd.uniform(0.1, 1.0) * whole_time)
        assert word in ("killed", "ended 0")
        killed += word == "killed"
        if out.exists():  # whole: once more from nothing
            assert sha(out) == right
            make(out)  # clears what a kill in the very last step may leave
            assert names(tmp_path) == ["a.pack"]
            out.unlink()
        else:
            journal = tmp_path / "a.pack.journal"
            begun.add(len(journal.read_bytes().splitlines()) if journal.exists() else 0)
            with pytest.raises(PackError):
                Pack.open(tmp_path / "a.pack.partial")
    process.stdin.close()
    assert process.wait(10) == 0
    assert killed == KILLS
    assert len(begun) > 4, "the kills came at too few different moments"
    assert sha(make(out).path) == right
    assert names(tmp_path) == ["a.pack"]


@pytest.mark.parametrize("after", [0, 4096, 300_000, 2_000_000, 5_500_000])
def test_a_full_disk_is_told_and_leaves_nothing_that_is_taken_for_whole(tmp_path, right, after):
    out = tmp_path / "a.pack"
    with pytest.raises(OutputError, match="cannot be written: full") as caught:
        make(out, pwrite=Failing(after, errno.ENOSPC))
    assert "(ENOSPC)" in caught.value.what
    assert "Free some space" in caught.value.remedy
    assert "goes on where it was" in caught.value.remedy
    assert not out.exists()
    with pytest.raises(PackError, match=r"is not a pack: it begins with nothing"):
        Pack.open(tmp_path / "a.pack.partial")
    with pytest.raises(PackError, match="is not finished yet"):
        Pack.open(out)
    got = make(out)
    assert sha(out) == right
    assert (got.earlier_bytes > 0) == (after >= 300_000)
    assert names(tmp_path) == ["a.pack"]


def test_a_file_size_limit_of_the_system_is_told_like_a_full_disk(tmp_path):
    """A real refusal by the operating system, not an injected one."""
    code = (
        "import resource, sys; from kimistream.cli.app import run_app;"
        "from kimistream.engine import packing; packing.prepare_kernels(1);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000));"
        "sys.exit(run_app(['pack', sys.argv[1], sys.argv[2], '-q']))"
    )
    out = tmp_path / "a.pack"
    done = subprocess.run(
        [sys.executable, "-c", code, str(TINY), str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()


def test_a_stop_in_the_middle_goes_on_without_doing_again_what_is_done(tmp_path, right):
    out = tmp_path / "a.pack"
    work = Packing(Checkpoint.open(TINY), out)
    written = []

    def stopping(handle: int, view: memoryview, offset: int) -> int:
        written.append(len(view))
        if sum(written) > 3_000_000:
            work.stop()
        return os.pwrite(handle, view, offset)

    work._pwrite = stopping
    with pytest.raises(Interrupted):
        work.run()
    notes: list[str] = []
    again: list[int] = []

    def counting(handle: int, view: memoryview, offset: int) -> int:
        again.append(len(view))
        return os.pwrite(handle, view, offset)

    got = make(out, note=notes.append, pwrite=counting)
    assert sha(out) == right
    assert got.earlier_bytes > 2_000_000
    assert sum(again) < got.nbytes - 2_000_000
    assert any("going on with a pack that was begun" in note for note in notes)


@pytest.mark.parametrize(
    "damage", ["cut journal", "torn line", "wrong line", "no journal", "short partial", "told twice"]
)
def test_a_journal_that_is_damaged_costs_work_and_never_bytes(tmp_path, right, damage):
    out = tmp_path / "a.pack"
    with pytest.raises(OutputError):
        make(out, pwrite=Failing(3_000_000, errno.ENOSPC))
    journal, partial = tmp_path / "a.pack.journal", tmp_path / "a.pack.partial"
    data = journal.read_bytes()
    lines = data.splitlines(keepends=True)
    assert len(lines) > 10
    if damage == "cut journal":
        journal.write_bytes(b"".join(lines[:5]))
    elif damage == "torn line":
        journal.write_bytes(data[:-7])
    elif damage == "wrong line":
        journal.write_bytes(data.replace(lines[4][20:24], b"0000", 1))
    elif damage == "no journal":
        journal.unlink()
    elif damage == "told twice":
        journal.write_bytes(b"".join(lines[:6] + lines[3:]))
    else:
        os.truncate(partial, 1_000_000)
    make(out)
    assert sha(out) == right


def test_what_is_left_of_a_pack_of_another_checkpoint_is_not_gone_on_with(tmp_path, right):
    out, other = tmp_path / "a.pack", tmp_path / "other"
    shutil.copytree(TINY, other)
    path = sorted(other.glob("*.safetensors"))[1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(OutputError):
        make(out, other, pwrite=Failing(3_000_000, errno.ENOSPC))
    assert make(out).earlier_bytes == 0
    assert sha(out) == right


# ---- refused before it begins


@pytest.mark.parametrize("whole", [False, True])
def test_what_a_kill_left_of_writing_the_journal_goes_with_it_and_nothing_else(tmp_path, whole):
    out = tmp_path / "a.pack"
    if whole:
        make(out)
    (tmp_path / "a.pack.journal.4711.new").write_bytes(b"half a jour")
    (tmp_path / "a.pack.journal.mine.new").write_bytes(b"of the user")
    make(out)
    assert names(tmp_path) == ["a.pack", "a.pack.journal.mine.new"]


def test_too_little_room_is_refused_first_with_both_figures(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(packing.shutil, "disk_usage", lambda _: usage._replace(free=5_000_000))
    with pytest.raises(OutputError, match=r"about 7\d\.\d MB are needed and 5.00 MB are free"):
        make(tmp_path / "a.pack")
    assert names(tmp_path) == []


def test_what_will_be_needed_is_estimated_well(packed):
    size = packed(TINY, GROUP).stat().st_size
    assert size <= Cut(Checkpoint.open(TINY)).expected_bytes() <= 1.1 * size


def test_a_pack_that_is_there_is_not_made_again_and_anything_else_is_left_alone(tmp_path, packed):
    out = Path(shutil.copy(packed(TINY, GROUP), tmp_path / "a.pack"))
    before = out.stat()
    assert make(out).earlier_bytes > 0
    assert out.stat().st_mtime_ns == before.st_mtime_ns
    for content in (b"", b"my thesis", packed(TINY, GROUP).read_bytes()[:-1]):
        out.write_bytes(content)
        with pytest.raises(OutputError, match="is there already, and is no pack of"):
            make(out)
        assert out.read_bytes() == content
    with pytest.raises(OutputError, match="is there already"):
        make(tmp_path)


def test_two_at_once_are_refused(tmp_path, right):
    out = tmp_path / "a.pack"
    inside: list[str] = []

    def second(handle: int, view: memoryview, offset: int) -> int:
        if not inside:
            with pytest.raises(OutputError) as caught:
                make(out)
            inside.append(caught.value.what)
        return os.pwrite(handle, view, offset)

    make(out, pwrite=second)
    assert "is being made by another process" in inside[0]
    assert sha(out) == right


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(OutputError, match="there is no directory"):
        make(tmp_path / "missing" / "a.pack")


def test_a_shard_that_fails_while_it_is_read_is_told_and_the_pack_can_go_on(tmp_path, right):
    """The shard is cut after the checkpoint was opened."""
    copy = Path(shutil.copytree(TINY, tmp_path / "copy"))
    checkpoint = Checkpoint.open(copy)
    assert checkpoint.identity
    path = copy / "model-00003-of-000007.safetensors"
    data = path.read_bytes()
    os.truncate(path, 1_000_000)
    out = tmp_path / "a.pack"
    with pytest.raises(ReadError, match=path.name):
        Packing(checkpoint, out).run()
    assert not out.exists()
    path.write_bytes(data)
    make(out)
    assert sha(out) == right


def test_making_leaves_no_thread_and_no_descriptor(tmp_path):
    make(tmp_path / "a.pack")
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    make(tmp_path / "b.pack")
    with pytest.raises(OutputError):
        make(tmp_path / "c.pack", pwrite=Failing(1_000_000, errno.EIO))
    opened = Checkpoint.open(TINY)
    PackVerify(opened, Pack.open(tmp_path / "b.pack", opened)).run()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_cut_of_a_checkpoint_covers_every_row_once():
    with mock.patch.object(pack_cut, "GROUP_BYTES", 50_000):
        cut = Cut(Checkpoint.open(TINY))
    rows: dict[str, int] = {}
    for number in range(len(cut)):
        for stretch in cut.group(number):
            assert rows.get(stretch.ref.name, 0) == stretch.row0
            assert stretch.row0 % 16 == 0
            rows[stretch.ref.name] = stretch.row0 + stretch.rows
    assert {ref.name: ref.shape[0] for ref in cut.matrices} == {n: r for n, r in rows.items() if r}
    assert {ref.name for ref in cut.vectors} == {n for n, r in rows.items() if not r}
