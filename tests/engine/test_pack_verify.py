"""Packs compared with their checkpoint: every difference is found and named."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from damage import flip
from kimistream.checkpoint.pack import Pack
from kimistream.checkpoint.table import Checkpoint
from kimistream.engine.pack_verify import PackVerify
from kimistream.errors import BudgetError, Interrupted, PackError

TINY = Path(__file__).parents[1] / "data" / "tiny-k3"
GROUP = 100_000


def verified(path: Path, checkpoint: Path = TINY, **options):
    opened = Checkpoint.open(checkpoint)
    return PackVerify(opened, Pack.open(path, opened), **options).run()


@pytest.fixture
def copy(packed, tmp_path) -> Path:
    return Path(shutil.copy(packed(TINY, GROUP), tmp_path / "copy.pack"))


def test_verify_finds_a_whole_pack_right(copy):
    found = verified(copy)
    assert found.nbytes == copy.stat().st_size
    assert found.tensors == len(Pack.open(copy).directory.matrices) + len(Pack.open(copy).directory.vectors)
    with pytest.raises(BudgetError) as caught:
        verified(copy, memory=10_000_000)
    assert verified(copy, memory=caught.value.least_bytes + (9 << 20)).tensors == found.tensors


def test_verify_finds_a_flipped_bit_anywhere_in_the_bands_and_names_it(copy):
    rnd = random.Random(8)
    runs = [(m.name, run) for m in Pack.open(copy).directory.matrices for run in m.runs]
    for name, run in rnd.sample(runs, 12):
        at, bit = rnd.randrange(run.nbytes), 1 << rnd.randrange(8)
        flip(copy, run.offset + at, bit)
        with pytest.raises(PackError, match="is not as it was written") as caught:
            verified(copy)
        assert f"tensor {name}, band {run.row0 // 16 + at // run.band_bytes} " in caught.value.what
        assert "dmesg" in caught.value.remedy
        flip(copy, run.offset + at, bit)
    verified(copy)


def test_verify_finds_bands_that_changed_places(copy):
    """Each is sound by itself, and of the right matrix."""
    run = next(run for m in Pack.open(copy).directory.matrices for run in m.runs if run.bands > 3)
    data = bytearray(copy.read_bytes())
    a, b = (slice(run.offset + k * run.band_bytes, run.offset + (k + 1) * run.band_bytes) for k in (1, 2))
    data[a], data[b] = data[b], data[a]
    copy.write_bytes(data)
    with pytest.raises(PackError, match=r"band 1 .* is not as it was written"):
        verified(copy)


def test_verify_finds_a_shard_that_has_changed_since(copy, tmp_path):
    other = Path(shutil.copytree(TINY, tmp_path / "other"))
    ref = Checkpoint.open(other).dense("language_model.model.layers.4.self_attn.q_proj.weight")
    path = Checkpoint.open(other).files[ref.file].path
    row = ref.nbytes // ref.shape[0]
    flip(path, ref.offset + 7 * row + 3)
    with pytest.raises(PackError, match=r"q_proj.weight differs in row 7 between") as caught:
        verified(copy, other)
    assert path.name in caught.value.what


def test_every_form_of_interrupt_of_a_comparison_is_told(copy):
    opened = Checkpoint.open(TINY)
    check = PackVerify(opened, Pack.open(copy, opened))
    check.stop()
    with pytest.raises(Interrupted):
        check.run()
