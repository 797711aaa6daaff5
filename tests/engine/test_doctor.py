"""doctor: what it sees, what it predicts, and the one command it ends with."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from verify_fixtures import SHARD, copy_tiny

from kimistream.budget import Available
from kimistream.checkpoint.config import load_config
from kimistream.cli.app import run_app
from kimistream.cli.doctor import report
from kimistream.engine import doctor, drive, machine
from kimistream.engine.doctor import diagnose, predict
from kimistream.engine.drive import DriveRates, look_at, measure, trial_file
from kimistream.engine.paper import RELEASED_BYTES, VISION_BYTES, paper_checkpoint, paper_pack
from kimistream.engine.sizes import Request
from kimistream.errors import OutputError

GB = 10**9
RATES = DriveRates(2 * GB, 1 * GB, True, 1 << 20, 8, "nothing")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """A machine with a known disk and memory; tests of measuring undo this."""
    monkeypatch.setattr(doctor, "_rates", lambda *_: (RATES, ""))
    monkeypatch.setattr(doctor, "_memory_rate", lambda: 20.0 * GB)
    monkeypatch.setattr(machine, "default_budget", lambda: Available(24 * GB, "a test"))
    monkeypatch.setattr(doctor, "look_at", lambda d: replace(look_at(d), free=2000 * GB))


def test_without_a_checkpoint_the_released_model_is_told_and_pull_comes_next(tmp_path):
    found = diagnose(tmp_path / "not there")
    assert found.checkpoint == "no checkpoint yet"
    assert found.needed_bytes == RELEASED_BYTES - VISION_BYTES
    assert found.command == f"kimistream pull '{tmp_path / 'not there'}' --only text"
    assert [each.budget for each in found.predictions if each.budget == 24 * GB]
    assert "it runs here" in found.verdict
    assert not (tmp_path / "not there").exists()


def test_a_whole_checkpoint_is_to_be_run(tmp_path):
    tiny = copy_tiny(tmp_path)
    found = diagnose(tiny)
    assert found.whole
    assert found.needed_bytes == 0
    assert found.command == f"kimistream run {tiny} --ids 1,2,3"


def test_text_is_suggested_only_where_there_are_tokenizer_files_that_can_be_used(talking, tmp_path):
    assert diagnose(talking).command == f"kimistream run {talking} --prompt Hello"
    broken = Path(shutil.copytree(talking, tmp_path / "broken"))
    (broken / "tiktoken.model").write_bytes(b"no ranks")
    found = diagnose(broken)
    assert found.whole
    assert found.command == f"kimistream run {broken} --ids 1,2,3"
    assert "without text" in found.checkpoint
    assert str(broken / "tiktoken.model") in found.checkpoint


def test_a_checkpoint_that_is_not_whole_is_to_be_verified(tmp_path):
    tiny = copy_tiny(tmp_path)
    os.truncate(tiny / SHARD, 1000)
    found = diagnose(tiny)
    assert SHARD in found.checkpoint
    assert found.command == f"kimistream verify {tiny}"


def test_a_pull_that_is_not_finished_is_to_be_finished(tmp_path):
    (tmp_path / ".kimistream" / "partial").mkdir(parents=True)
    (tmp_path / ".kimistream" / "pull.json").write_text(json.dumps({"files": {"a": {}, "gone": {}}}))
    (tmp_path / "a").write_bytes(bytes(1000))
    (tmp_path / ".kimistream" / "partial" / "b.1.partial").write_bytes(bytes(500))
    found = diagnose(tmp_path)
    assert found.needed_bytes == RELEASED_BYTES - VISION_BYTES - 1500
    assert found.command == f"kimistream pull {tmp_path} --only text"


def test_a_disk_without_room_and_a_machine_without_memory_are_told_with_both_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "look_at", lambda d: replace(look_at(d), free=100 * GB))
    monkeypatch.setattr(machine, "default_budget", lambda: Available(GB // 2, "memory.max of a test"))
    found = diagnose(tmp_path)
    text = "\n".join(found.remarks)
    assert "100 GB free, 1.56 TB are still to be fetched" in text
    assert "500 MB of memory can be had (memory.max of a test)" in text
    assert "it does not run here" in found.verdict
    assert found.command == "kimistream run demo --prompt Hello"


def test_the_paper_checkpoint_has_the_released_sizes():
    table = paper_checkpoint()
    dense = [ref for ref in map(table.dense, table.names()) if ".layers." in ref.name]
    assert round(sum(ref.nbytes for ref in dense) / GB, 1) == 108.8
    assert table.experts(1).run_bytes == 17_547_264
    assert len(table.config.moe_layers) == 92
    assert (
        abs(sum(file.size for file in table.files) + VISION_BYTES - RELEASED_BYTES) < 0.001 * RELEASED_BYTES
    )
    assert table.config.num_layers == 93


def test_more_memory_never_reads_more_and_experts_cost_their_own_rate():
    table, request = paper_checkpoint(), Request(4096, None, None)
    budgets = [gb * GB for gb in (2, 8, 32, 64, 128, 256)]
    found = predict(table, request, budgets, RATES, 1e15, 64 * GB)
    assert [each.budget for each in found] == budgets
    read = [each.disk_bytes for each in found]
    assert read == sorted(read, reverse=True)
    assert [each.fits for each in found] == [True, True, True, True, False, False]
    least = found[0]
    experts = 92 * 16 * 17.55e6
    tape = least.disk_bytes - experts
    assert least.seconds == pytest.approx((tape / (2 * GB) + experts / (1 * GB)) / 0.95, rel=0.02)
    assert all(each.seconds == 0 for each in predict(table, request, budgets, None, GB, GB))


def test_where_the_tape_is_resident_a_token_computes_and_waits_for_its_experts():
    table, request = paper_checkpoint(), Request(4096, None, None)
    memory_rate, rates = 30.0 * GB, DriveRates(2 * GB, 2 * GB, True, 1 << 20, 8, "nothing")
    (found,) = predict(table, request, [160 * GB], rates, memory_rate, 256 * GB)
    assert found.kept_share == 1
    reading = found.disk_bytes / (0.95 * rates.scattered)
    used = 108.8 * GB + 2.35 * GB + 92 * 16 * 17.55e6 + 0.93 * GB  # layers, head, experts, states twice
    computing = used / (0.75 * memory_rate)
    # a layer's experts cannot be asked for before its router spoke: more than either alone, less than both
    assert found.seconds > 1.1 * max(reading, computing)
    beside = 92 * 2 * (3 * 2 * 3072 + 3584) * 7168 / (0.75 * memory_rate)
    layer = (computing - beside) / 93
    guessed = 92 * 0.7 * min(layer, 8 * 17.55e6 / (0.95 * rates.scattered))
    assert found.seconds == pytest.approx(computing + reading - beside - guessed, rel=0.05)


def test_with_everything_resident_a_token_only_computes():
    table, request = paper_checkpoint(), Request(4096, None, None)
    (found,) = predict(table, request, [2000 * GB], RATES, 30.0 * GB, 2000 * GB)
    assert found.disk_bytes == 0
    assert found.seconds == pytest.approx((108.8 + 2.35 + 92 * 16 * 17.55e-3 + 0.93) / (0.75 * 30), rel=0.05)


def test_with_a_pack_less_is_read_and_more_is_kept():
    table, request = paper_checkpoint(), Request(4096, None, None)
    pack = paper_pack(table)
    assert 0.75 * 108.8 < (pack.size / GB - 0.76 * 2.35) < 0.77 * 108.8  # the layers, without the head
    for budget in (4 * GB, 64 * GB):
        (plain,) = predict(table, request, [budget], RATES, 1e15, budget)
        (packed,) = predict(table, request, [budget], RATES, 1e15, budget, pack)
        assert (plain.storage, packed.storage) == ("released", "pack")
        assert packed.seconds < 0.9 * plain.seconds
        assert packed.kept_share >= 1.2 * plain.kept_share
    assert packed.kept_share > plain.kept_share


def test_the_report_tells_what_a_pack_would_save_and_the_command_for_a_whole_checkpoint(tmp_path):
    found = diagnose(tmp_path)
    assert any("with a pack" in line for line in report(found))
    (note,) = (remark for remark in found.remarks if "a pack of the dense weights (8" in remark)
    assert "kimistream pack" not in note
    assert found.pack_bytes > 80 * GB


def test_the_report_ends_with_one_command(tmp_path):
    lines = report(diagnose(tmp_path))
    assert lines[-1] == f"next: kimistream pull {tmp_path} --only text"
    assert any("<- what there is now" in line for line in lines)
    assert any("direct reads of 1.05 MB, 8 at once" in line for line in lines)


def test_json_holds_every_figure(tmp_path, capsys):
    assert run_app(["doctor", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rates"]["sequential"] == 2 * GB
    assert found["memory"]["bound"] == "a test"
    assert found["drive"]["free"] == 2000 * GB
    assert {"budget", "storage", "kept_share", "disk_bytes", "seconds"} <= set(found["predictions"][0])
    assert found["command"].startswith("kimistream pull")


# ---------------------------------------------------------------- measuring


def files_of(folder: Path, *sizes: int) -> list[Path]:
    paths = []
    for i, size in enumerate(sizes):
        paths.append(folder / f"{i}.bin")
        paths[-1].write_bytes(os.urandom(size))
    return paths


def test_the_disk_is_measured_by_direct_reads_in_bounded_time(tmp_path):
    paths = files_of(tmp_path, 30 << 20, 5_000_001)
    started = time.monotonic()
    rates = measure(paths, "two files", 0.3)
    assert time.monotonic() - started < 8
    assert rates.sequential > 0
    assert rates.scattered > 0
    assert rates.on == "two files"


def test_where_direct_reads_are_refused_the_cache_is_dropped_and_it_is_said(tmp_path, monkeypatch):
    paths = files_of(tmp_path, 20 << 20)
    dropped = []
    real = os.posix_fadvise
    monkeypatch.setattr(os, "posix_fadvise", lambda *a: (dropped.append(a), real(*a))[1])
    reader = drive.Reader

    def refusing(paths):
        def no_direct(path, flags):
            if flags & os.O_DIRECT:
                raise OSError(errno.EINVAL, "Invalid argument")
            return os.open(path, flags)

        return reader(paths, open_file=no_direct)

    monkeypatch.setattr(drive, "Reader", refusing)
    rates = measure(paths, "a file", 0.2)
    assert not rates.direct
    assert dropped
    monkeypatch.setattr(doctor, "_rates", lambda *_: (rates, ""))
    assert any("direct reads are refused" in remark for remark in diagnose(tmp_path / "x").remarks)


def test_the_trial_file_is_gone_afterwards_whatever_happens(tmp_path):
    with trial_file(tmp_path, 4 << 30, 64 << 20) as path:
        assert path.stat().st_size == 64 << 20
        blocks = path.read_bytes()
        assert len({blocks[at : at + 4096] for at in range(0, 64 << 20, 8 << 20)}) == 8
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt), trial_file(tmp_path, 4 << 30, 64 << 20):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    with pytest.raises(OutputError, match="too few to measure"), trial_file(tmp_path, 1000):
        pass
    with pytest.raises(OutputError, match="cannot be measured"), trial_file(tmp_path / "no", 4 << 30):
        pass


def test_a_drive_that_cannot_be_measured_is_no_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_rates", lambda *_: (None, "no room"))
    found = diagnose(tmp_path)
    assert "could not be measured" in found.verdict
    assert any("not measured: no room" in line for line in report(found))


@pytest.mark.parametrize(("disk", "expected"), [("1", True), ("0", False), (None, None)])
def test_a_partition_asks_its_disk_whether_it_rotates(tmp_path, disk, expected):
    part = tmp_path / "devices" / "sda" / "sda1"
    part.mkdir(parents=True)
    if disk is not None:
        (part.parent / "queue").mkdir()
        (part.parent / "queue" / "rotational").write_text(disk + "\n")
    (tmp_path / "dev" / "block").mkdir(parents=True)
    (tmp_path / "dev" / "block" / "8:1").symlink_to(part)
    assert drive._rotating("8:1", "/dev/sda1", tmp_path) is expected
    assert drive._rotating("9:9", "/dev/none", tmp_path) is None


def test_a_raid_rotates_if_one_of_its_drives_does(tmp_path):
    raid = tmp_path / "devices" / "md0"
    (raid / "slaves").mkdir(parents=True)
    for name, spins in (("sda", "0"), ("sdb", "1")):
        (tmp_path / "devices" / name / "queue").mkdir(parents=True)
        (tmp_path / "devices" / name / "queue" / "rotational").write_text(spins)
        (raid / "slaves" / name).symlink_to(tmp_path / "devices" / name)
    (tmp_path / "class" / "block").mkdir(parents=True)
    (tmp_path / "class" / "block" / "md0").symlink_to(raid)
    assert drive._rotating("0:40", "/dev/md0", tmp_path) is True


def test_the_released_sizes_are_not_those_of_the_tiny_model(tmp_path):
    assert load_config(copy_tiny(tmp_path)) != paper_checkpoint().config
