"""Every byte of a checkpoint: wrong ones are found, with file, tensor and the command that mends it (T2, T6)."""

from __future__ import annotations

import errno
import json
import os
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verify_fixtures import SHARD, copy_tiny, deep_findings, place, with_manifest

from damage import flip, overwrite
from kimistream.checkpoint.digest import MARK_BYTES, MarkedSha256, digest_file
from kimistream.checkpoint.header import read_header
from kimistream.checkpoint.scan import PAGE, ZERO_PAGE, ShardScan, glance
from kimistream.cli.app import run_app
from kimistream.engine import deep as deep_module
from kimistream.engine.deep import DeepCheck, judge
from kimistream.engine.verify import inspect
from kimistream.errors import Interrupted
from kimistream.kernels.finite import glance as compiled_glance

DENSE = "language_model.model.layers.4.self_attn.q_proj.weight"
VECTOR = "language_model.model.layers.4.self_attn.dt_bias"
EXPERT = "language_model.model.layers.4.block_sparse_moe.experts.7.w1."
REPAIR = f"--files {SHARD}"


@pytest.fixture
def tiny(tmp_path):
    return copy_tiny(tmp_path)


def test_a_good_checkpoint_has_no_findings_and_the_digests_are_sha256(tiny):
    with_manifest(tiny)
    assert deep_findings(tiny) == []
    manifest = json.loads((tiny / "kimistream-manifest.json").read_text())
    assert set(manifest["files"]) == {
        path.name for path in tiny.iterdir() if path.name[0] == "m" or "config" in path.name
    }
    for name, entry in manifest["files"].items():
        assert digest_file(tiny / name).sha256 == entry["sha256"]
        assert entry["size"] == (tiny / name).stat().st_size
    assert not (tiny / ".kimistream").exists()


@pytest.mark.parametrize("source", ["local", "hub"])
@pytest.mark.parametrize("where", [0.0, 0.37, 1.0])
def test_one_flipped_bit_is_found_and_its_tensor_named(tiny, where, source):
    with_manifest(tiny, source)
    offset, nbytes = place(tiny, SHARD, DENSE)
    flip(tiny / SHARD, offset + int(where * (nbytes - 1)))
    (finding,) = deep_findings(tiny)
    assert (finding.file, finding.tensor) == (SHARD, DENSE)
    assert "sha256 is" in finding.what
    assert "first wrong byte is in this tensor" in finding.what
    assert finding.repair.endswith(REPAIR)


def test_a_flipped_bit_in_an_expert_and_in_a_file_that_is_no_shard(tiny):
    with_manifest(tiny)
    offset, nbytes = place(tiny, SHARD, EXPERT + "weight_packed")
    flip(tiny / SHARD, offset + nbytes - 1)
    text = (tiny / "config.json").read_text()
    (tiny / "config.json").write_text(text.replace('"bos_token_id": 508', '"bos_token_id": 507', 1))
    found = {finding.file: finding for finding in deep_findings(tiny)}
    assert set(found) == {SHARD, "config.json"}
    assert found[SHARD].tensor == EXPERT + "weight_packed"
    assert found["config.json"].tensor is None


def test_a_changed_header_is_not_blamed_on_a_tensor(tiny):
    with_manifest(tiny)
    data = (tiny / SHARD).read_bytes()
    header = bytearray(data)
    length = int.from_bytes(data[:8], "little")
    end = 8 + length
    assert data[end - 1 : end] == b" "
    header[end - 1] = ord("\t")
    (tiny / SHARD).write_bytes(header)
    (finding,) = deep_findings(tiny)
    assert finding.tensor is None
    assert "first wrong byte is in the header" in finding.what


@pytest.mark.parametrize("name", [DENSE, EXPERT + "weight_packed", EXPERT + "weight_scale"])
def test_a_tensor_of_zeros_is_found_without_a_manifest(tiny, name):
    offset, nbytes = place(tiny, SHARD, name)
    overwrite(tiny / SHARD, offset, bytes(nbytes))
    (finding,) = deep_findings(tiny)
    assert (finding.file, finding.tensor, finding.what) == (SHARD, name, "nothing but zeros")
    assert finding.repair.endswith(REPAIR)


def test_a_page_of_zeros_is_found_without_a_manifest(tiny):
    """What a punched hole becomes when the file is copied."""
    offset, _ = place(tiny, SHARD, DENSE)
    page = -(-offset // 4096) * 4096
    overwrite(tiny / SHARD, page, bytes(4096))
    (finding,) = deep_findings(tiny)
    assert finding.tensor == DENSE
    assert f"4,096 bytes of zeros, the first at byte {page:,}" in finding.what


def test_zeros_and_holes_that_the_manifest_vouches_for_are_notes_only(tiny):
    offset, nbytes = place(tiny, SHARD, DENSE)
    overwrite(tiny / SHARD, offset, bytes(nbytes))
    data = (tiny / SHARD).read_bytes()
    start = -(-offset // 4096) * 4096
    with (tiny / SHARD).open("wb") as file:
        file.write(data[:start])
        file.seek(start + 4096)
        file.write(data[start + 4096 :])
    assert {finding.harmless for finding in deep_findings(tiny)} == {False}
    with_manifest(tiny)
    findings = deep_findings(tiny)
    assert findings
    assert {finding.harmless for finding in findings} == {True}
    assert run_app(["verify", str(tiny), "--deep"]) == 0
    assert run_app(["verify", str(tiny)]) == 1  # without reading, a hole stays a doubt


def test_scale_255_is_found_even_with_a_right_digest(tiny):
    name = EXPERT + "weight_scale"
    offset, _ = place(tiny, SHARD, name)
    overwrite(tiny / SHARD, offset + 11, b"\xff")
    overwrite(tiny / SHARD, offset + 40, b"\xff")
    with_manifest(tiny)
    (finding,) = deep_findings(tiny)
    assert (finding.tensor, finding.harmless) == (name, False)
    assert "2 scales of 255" in finding.what
    assert "index 11" in finding.what


def test_255_among_the_codes_is_no_fault(tiny):
    offset, _ = place(tiny, SHARD, EXPERT + "weight_packed")
    overwrite(tiny / SHARD, offset, b"\xff" * 16)
    assert deep_findings(tiny) == []


@pytest.mark.parametrize(
    ("bits", "good"), [(0x7F80, 0), (0xFF80, 0), (0x7FC1, 0), (0xFFFF, 0), (0x7F7F, 1), (0xFF7F, 1)]
)
def test_nan_and_infinity_in_bf16_are_found_and_the_largest_numbers_are_not(tiny, bits, good):
    offset, nbytes = place(tiny, SHARD, DENSE)
    overwrite(tiny / SHARD, offset + nbytes - 2, bits.to_bytes(2, "little"))
    findings = deep_findings(tiny)
    assert len(findings) == 1 - good
    for finding in findings:
        assert finding.tensor == DENSE
        assert f"1 NaN or infinite numbers, the first at index {nbytes // 2 - 1:,}" in finding.what


@pytest.mark.parametrize("bits", [0x7F800000, 0xFF800000, 0x7FC00000])
def test_nan_and_infinity_in_float32_are_found(tiny, bits):
    offset, _ = place(tiny, SHARD, VECTOR)
    overwrite(tiny / SHARD, offset + 12, bits.to_bytes(4, "little"))
    (finding,) = deep_findings(tiny)
    assert finding.tensor == VECTOR
    assert "index 3" in finding.what


def shard_of(path, dtypes: list[tuple[str, bytes]], padding: int) -> None:
    entries, data = {}, b""
    for i, (dtype, part) in enumerate(dtypes):
        width = {"BF16": 2, "F32": 4, "U8": 1}[dtype]
        entries[f"t{i}.weight_scale"] = {
            "dtype": dtype, "shape": [len(part) // width], "data_offsets": [len(data), len(data) + len(part)],
        }  # fmt: skip
        data += part
    text = json.dumps(entries).encode() + b" " * padding
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_cut_into_pieces_and_any_offset_gives_the_same_findings(data):
    """Odd header lengths put numbers across pieces; each must be seen once and whole."""
    import tempfile
    from pathlib import Path

    rnd = np.random.default_rng(data.draw(st.integers(0, 1000)))
    tensors, bad = [], []
    for _ in range(data.draw(st.integers(1, 5))):
        dtype = data.draw(st.sampled_from(["BF16", "F32", "U8"]))
        count = data.draw(st.integers(1, 30000))
        width = {"BF16": 2, "F32": 4, "U8": 1}[dtype]
        values = rnd.integers(1, 100, count * width, dtype=np.uint8)
        wrong = None
        if data.draw(st.booleans()):
            wrong = data.draw(st.integers(0, count - 1))
            values[wrong * width : (wrong + 1) * width] = 255
        tensors.append((dtype, values.tobytes()))
        bad.append(wrong)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        shard_of(path, tensors, data.draw(st.integers(0, 9)))
        header = read_header(path)
        look = data.draw(st.sampled_from([glance, compiled_glance]))
        scan, content = ShardScan(header, look), np.fromfile(path, np.uint8)
        step = 4096 * data.draw(st.integers(1, 4))
        for at in range(0, len(content), step):
            scan.feed(at, content[at : at + step])
    found = {trouble.tensor: trouble.what for trouble in scan.troubles}
    assert set(found) == {f"t{i}.weight_scale" for i, wrong in enumerate(bad) if wrong is not None}
    for i, wrong in enumerate(bad):
        if wrong is not None:
            assert f"index {wrong:,}" in found[f"t{i}.weight_scale"]


@pytest.mark.parametrize("width", [2, 4])
def test_a_glance_sees_the_largest_number_wherever_it_stands(width):
    rnd = np.random.default_rng(width)
    piece = rnd.integers(0, 120, 3 * PAGE, dtype=np.uint8)
    infinity = {2: 0x7F80, 4: 0x7F800000}[width]
    for look in (glance, compiled_glance):
        assert look(piece, width) < infinity
        assert look(piece, 0) == 0
    numbers = piece.view(f"u{width}")
    for spot in [*range(130), len(numbers) // 2, len(numbers) - 1]:
        for value in (infinity, infinity + (1 << (8 * width - 1)), infinity + 5):
            before, numbers[spot] = numbers[spot].copy(), value
            assert glance(piece, width) == compiled_glance(piece, width) == value & ~(1 << (8 * width - 1))
            numbers[spot] = before


@pytest.mark.parametrize("look", [glance, compiled_glance])
def test_a_glance_sees_a_page_that_begins_with_zeros(look):
    piece = np.full(4 * PAGE, 1, np.uint8)
    for page in range(4):
        piece[page * PAGE : page * PAGE + 7] = 0
        assert look(piece, 0) == 0
        piece[page * PAGE + 7] = 0
        assert look(piece, 0) == ZERO_PAGE
        assert look(piece, 2) == ZERO_PAGE + 0x0101
        piece[:] = 1


@pytest.mark.parametrize("look", [glance, compiled_glance])
@pytest.mark.parametrize("dtype", ["BF16", "F32", "U8"])
def test_a_lost_page_in_the_middle_is_seen_though_pieces_are_only_glanced_at(tmp_path, look, dtype):
    path = tmp_path / "x.safetensors"
    values = np.full(40 * PAGE, 60, np.uint8)
    shard_of(path, [(dtype, values.tobytes())], 0)
    header, content = read_header(path), np.fromfile(path, np.uint8)
    content[17 * PAGE : 18 * PAGE] = 0
    scan = ShardScan(header, look)
    for at in range(0, len(content), 2 * PAGE):
        scan.feed(at, content[at : at + 2 * PAGE])
    (trouble,) = scan.troubles
    assert not trouble.sure
    assert f"4,096 bytes of zeros, the first at byte {17 * PAGE:,}" in trouble.what


@given(st.lists(st.integers(0, 300), max_size=6), st.lists(st.integers(1, 90), max_size=8))
def test_marks_are_digests_of_what_came_before(marks, cuts):
    import hashlib

    data = bytes(range(256)) + bytes(44)
    hashed, at = MarkedSha256(sorted(marks)), 0
    for cut in [*cuts, len(data)]:
        hashed.update(memoryview(data)[at : at + cut])
        at += cut
    assert hashed.sha256 == hashlib.sha256(data).hexdigest()
    expected = [hashlib.sha256(data[:mark]).digest()[:MARK_BYTES] for mark in sorted(marks)]
    assert hashed.marks == b"".join(expected)


# ---------------------------------------------------------------- T6: reads that go wrong


def test_direct_reading_refused_at_the_first_read_goes_on_and_says_so(tiny):
    with_manifest(tiny)
    direct = []

    def refuse(fd, views, offset):
        import fcntl

        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            direct.append(fd)
            raise OSError(errno.EINVAL, "Invalid argument")
        return os.preadv(fd, views, offset)

    notes: list[str] = []
    assert deep_findings(tiny, pread=refuse, note=notes.append) == []
    assert direct
    assert any("direct reading is refused" in note for note in notes)


def test_short_and_interrupted_reads_lose_nothing(tiny):
    with_manifest(tiny)
    calls = [0]

    def short(fd, views, offset):
        calls[0] += 1
        if calls[0] % 5 == 0:
            raise InterruptedError
        count = max(4096, len(views[0]) // 3 // 4096 * 4096)
        return os.preadv(fd, [views[0][:count]], offset)

    assert deep_findings(tiny, pread=short) == []


def test_an_input_output_error_is_the_finding_of_its_file_and_the_others_are_read(tiny):
    with_manifest(tiny)
    flip(tiny / "model-00003-of-000007.safetensors", 2_000_000)
    bad = os.stat(tiny / SHARD).st_ino

    def failing(fd, views, offset):
        if os.fstat(fd).st_ino == bad:
            raise OSError(errno.EIO, "Input/output error")
        return os.preadv(fd, views, offset)

    found = {finding.file: finding for finding in deep_findings(tiny, pread=failing)}
    assert set(found) == {SHARD, "model-00003-of-000007.safetensors"}
    assert "Input/output error" in found[SHARD].what
    assert found[SHARD].repair.endswith(REPAIR)


# ---------------------------------------------------------------- stopping and going on


class Stopped(Exception):
    pass


def interrupted(directory, after: int) -> set[str]:
    """Run a check with one worker and stop it when `after` files are done; the names that were read."""
    inspected = inspect(directory)
    check = DeepCheck(inspected, workers=1)
    add = deep_module.DeepState.add
    names: set[str] = set()

    def stop_after(self, name, outcome):
        add(self, name, outcome)
        names.add(name)
        if len(names) == after:
            check.stop()

    deep_module.DeepState.add = stop_after
    try:
        check.run()
    finally:
        deep_module.DeepState.add = add
    return names


def test_a_stopped_check_goes_on_and_does_not_read_again(tiny, monkeypatch):
    with_manifest(tiny)
    flip(tiny / SHARD, 2_000_000)
    with pytest.raises(Interrupted):
        interrupted(tiny, 4)
    read = []
    real = DeepCheck._read
    monkeypatch.setattr(
        DeepCheck, "_read", lambda self, r, n, name, v: (read.append(name), real(self, r, n, name, v))[1]
    )
    inspected = inspect(tiny)
    check = DeepCheck(inspected)
    done = check.run()
    assert done.earlier == 4
    assert len(read) == len(inspected.paths) - 4
    assert [finding.file for finding in judge(inspected, done)] == [SHARD]
    assert check.progress.snapshot().done == inspected.nbytes
    assert not (tiny / ".kimistream").exists()


@pytest.mark.parametrize("change", ["time", "size", "age"])
def test_what_was_read_before_a_change_is_read_again(tiny, change, monkeypatch):
    with_manifest(tiny)
    with pytest.raises(Interrupted):
        names = interrupted(tiny, 9 - 1)
    state = json.loads((tiny / ".kimistream" / "verify.json").read_text())
    names = set(state["files"])
    assert len(names) == 8
    assert SHARD in names
    if change == "time":
        flip(tiny / SHARD, 2_000_000)
        expected = 7
    elif change == "size":
        with (tiny / SHARD).open("ab") as file:
            file.write(b"x")
        expected = 7
    else:
        monkeypatch.setattr(time, "time", lambda: state["began"] + 8 * 86400)
        expected = 0
    inspected = inspect(tiny)
    assert DeepCheck(inspected).run().earlier == expected


def test_a_directory_that_cannot_be_written_is_checked_all_the_same(tiny):
    with_manifest(tiny)
    (tiny / ".kimistream").write_text("a file is in the way")
    notes: list[str] = []
    assert deep_findings(tiny, note=notes.append) == []
    assert any("cannot be written" in note for note in notes)


def test_stopping_takes_less_than_two_seconds_and_frees_the_threads(tiny):
    with_manifest(tiny)

    def slow(fd, views, offset):
        time.sleep(0.3)
        return os.preadv(fd, views, offset)

    check = DeepCheck(inspect(tiny), pread=slow, workers=2)
    threading.Timer(0.2, check.stop).start()
    started = time.monotonic()
    with pytest.raises(Interrupted):
        check.run()
    assert time.monotonic() - started < 2
    assert not [t for t in threading.enumerate() if t.name.startswith("verify ")]


# ---------------------------------------------------------------- the command


def test_write_manifest_is_refused_for_a_wrong_or_a_published_one(tiny, capsys):
    offset, _ = place(tiny, SHARD, DENSE)
    overwrite(tiny / SHARD, offset, b"\x80\x7f")
    assert run_app(["verify", str(tiny), "--write-manifest"]) == 1
    assert not (tiny / "kimistream-manifest.json").exists()
    assert "NaN or infinite" in capsys.readouterr().out
    overwrite(tiny / SHARD, offset, b"\x80\x3f")
    assert run_app(["verify", str(tiny), "--write-manifest"]) == 0
    assert "kimistream-manifest.json" in capsys.readouterr().out
    assert run_app(["verify", str(tiny), "--deep"]) == 0
    assert "sha256 right for 9 of 9 files" in capsys.readouterr().out
    with_manifest(tiny, "hub")
    assert run_app(["verify", str(tiny), "--write-manifest"]) == 2
    assert "hub's own digests" in capsys.readouterr().err


def test_the_command_names_file_tensor_and_repair(tiny, capsys):
    with_manifest(tiny, "hub")
    offset, _ = place(tiny, SHARD, DENSE)
    flip(tiny / SHARD, offset)
    assert run_app(["verify", str(tiny), "--deep"]) == 1
    out, err = capsys.readouterr()
    assert f"WRONG {SHARD}: tensor {DENSE}: its bytes are not those" in out
    assert f"Run: kimistream pull owner/model {tiny} --files {SHARD}" in err
