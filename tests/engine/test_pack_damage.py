"""A damaged band never becomes a token: found when it is read, named, and the model stays usable."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from damage import flip
from kimistream.checkpoint.pack import Pack
from kimistream.checkpoint.table import Checkpoint
from kimistream.engine.model import Model
from kimistream.engine.sizes import Tuning
from kimistream.errors import PackError
from kimistream.kernels import bands
from kimistream.model import band_check
from kimistream.stream import files

TINY = Path(__file__).parents[1] / "data" / "tiny-k3"
STREAMED = Tuning(block_bytes=65536, ring=2, pin=False)


@pytest.fixture
def copy(packed, tmp_path) -> Path:
    return Path(shutil.copy(packed(TINY), tmp_path / "copy.pack"))


def opened(pack: Path, **options) -> Model:
    return Model.open(TINY, pack=pack, memory="2GB", context=32, **options)


def tokens(model: Model, n: int = 3) -> list[int]:
    return [r.id for r in model.generate([5, 6, 7], max_tokens=n, ignore_eos=True)]


@pytest.mark.parametrize("tuning", [STREAMED, Tuning()], ids=["streamed", "pinned"])
def test_a_flipped_bit_of_any_band_ends_the_pass_with_its_name(copy, tuning):
    rnd = random.Random(5)
    runs = [(m.name, run) for m in Pack.open(copy).directory.matrices for run in m.runs]
    # the first and the last of the tape, one with heads, and some others
    heads = next(each for each in runs if "kv_b_proj" in each[0])
    for name, run in [runs[0], runs[-1], heads, *rnd.sample(runs, 3)]:
        at, bit = rnd.randrange(run.nbytes), 1 << rnd.randrange(8)
        flip(copy, run.offset + at, bit)
        with opened(copy, tuning=tuning) as model, pytest.raises(PackError) as caught:
            tokens(model)
        assert (
            f"{copy} is damaged: tensor {name}, band {run.row0 // 16 + at // run.band_bytes} "
            in caught.value.what
        )
        assert f"kimistream pack {TINY}" in caught.value.remedy
        flip(copy, run.offset + at, bit)


def test_streamed_bands_are_checked_in_every_pass(copy):
    run = Pack.open(copy).directory.matrices[20].runs[0]
    with opened(copy, tuning=STREAMED) as model:
        want = tokens(model)
        flip(copy, run.offset + run.band_bytes - 1)
        with pytest.raises(PackError, match="is not as it was written"):
            tokens(model)
        flip(copy, run.offset + run.band_bytes - 1)
        assert tokens(model) == want


def test_pinned_bands_are_checked_once(copy, monkeypatch):
    looked: list[int] = []

    def counting(form, address, count, place):
        looked.append(count)
        return bands.check_bands(form, address, count, place)

    monkeypatch.setattr(band_check, "check_bands", counting)
    total = sum(run.bands for matrix in Pack.open(copy).directory.matrices for run in matrix.runs)
    with opened(copy) as model:
        assert model.plan.resident
        tokens(model)
        assert sum(looked) == total
    looked.clear()
    with opened(copy, tuning=STREAMED) as model:
        list(model.generate([5], max_tokens=3, ignore_eos=True))  # a prompt of one pass, then two more
        assert sum(looked) == 3 * total


def test_a_pack_on_another_drive_has_a_queue_of_its_own(packed, monkeypatch):
    """Tape and experts are then read at once."""
    pack = packed(TINY)
    drive_of = files._drive_of
    number = os.stat(pack).st_ino

    def drive(handle: int) -> int:
        return 12345 if os.fstat(handle).st_ino == number else drive_of(handle)

    with opened(pack, tuning=STREAMED) as model:
        want = tokens(model)
    monkeypatch.setattr(files, "_drive_of", drive)
    with opened(pack, tuning=STREAMED) as model:
        assert model.reader.drives == 2
        before = model.reader.counters()
        assert tokens(model) == want
        read = model.reader.counters() - before
    matrices = Pack.open(pack).directory.matrices
    assert read.tape_bytes >= 3 * 0.9 * sum(run.nbytes for matrix in matrices for run in matrix.runs)
    assert read.expert_bytes > 0


def test_a_damaged_vector_is_refused_before_anything_is_computed(copy):
    vector = Pack.open(copy).directory.vectors[7]
    flip(copy, vector.offset + 3)
    with pytest.raises(PackError, match="is damaged: vector") as caught:
        opened(copy)
    assert vector.name in caught.value.what


def test_bands_in_the_place_of_others_are_refused(copy):
    """A copied block of the file, sound by itself, as a drive that misplaces writes would leave it."""
    matrices = Pack.open(copy).directory.matrices
    twins = {}
    for matrix in matrices:
        run = matrix.runs[0]
        key = (run.form, run.band_bytes, run.bands)
        if key in twins:
            break
        twins[key] = run
    other = twins[key]
    data = bytearray(copy.read_bytes())
    data[run.offset : run.offset + run.band_bytes] = data[other.offset : other.offset + other.band_bytes]
    copy.write_bytes(data)
    with opened(copy) as model, pytest.raises(PackError) as caught:
        tokens(model)
    assert f"tensor {matrix.name}, band 0 " in caught.value.what


def test_a_pack_of_a_model_with_the_same_shapes_is_refused_when_the_model_is_opened(copy, tmp_path):
    other = Path(shutil.copytree(TINY, tmp_path / "other"))
    ref = Checkpoint.open(other).dense("language_model.model.layers.4.self_attn.q_proj.weight")
    path = Checkpoint.open(other).files[ref.file].path
    for offset in range(ref.offset, ref.offset + ref.nbytes, 512):
        flip(path, offset)
    with pytest.raises(PackError, match="was made from another checkpoint"):
        Model.open(other, pack=copy, memory="2GB", context=32)
    with pytest.raises(PackError, match="was made from another checkpoint"):
        Model.open(other, pack=Pack.open(copy), memory="2GB", context=32)


def test_a_nan_in_the_checkpoint_is_named_by_the_run_with_a_pack_too(tmp_path):
    from kimistream.engine.packing import Packing
    from kimistream.errors import NumberError

    other = Path(shutil.copytree(TINY, tmp_path / "other"))
    name = "language_model.model.layers.4.self_attn.q_proj.weight"
    ref = Checkpoint.open(other).dense(name)
    with Checkpoint.open(other).files[ref.file].path.open("r+b") as file:
        file.seek(ref.offset + 2 * (5 * ref.shape[1] + 3))
        file.write(b"\xc0\x7f")
    Packing(Checkpoint.open(other), tmp_path / "x.pack").run()
    with Model.open(other, pack=tmp_path / "x.pack", memory="2GB", context=32) as model:
        with pytest.raises(NumberError, match="row 5, column 3") as caught:
            tokens(model)
        assert name in caught.value.what
