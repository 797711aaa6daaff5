"""The logits with a pack are those without, bit for bit, whatever memory, blocks, threads and chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_exact import DATA, NAMES, all_logits, digest, run_with

from kimistream.checkpoint.pack import Pack
from kimistream.checkpoint.released import Sizes
from kimistream.checkpoint.synth import synth
from kimistream.checkpoint.table import Checkpoint
from kimistream.demo import path as demo_path
from kimistream.engine.model import Model
from kimistream.engine.packing import Packing
from kimistream.engine.sizes import Tuning
from kimistream.errors import BudgetError
from kimistream.kernels.formats import WeightFormat
from kimistream.model.order import tape_score

DEMO = "demo"


def directory_of(name: str) -> Path:
    return demo_path() if name == DEMO else DATA / name


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    found = {name: run_with(name) for name in NAMES}
    with Model.open(demo_path(), context=64, chunk=66, memory="2GB") as model:
        found[DEMO] = digest(all_logits(model, 33))
    return found


def run_packed(name, packed, *, chunk=33, memory="2GB", threads=None, group=100_000, company=False, **tuning):
    where = directory_of(name)
    options = {"context": 64, "chunk": max(2 * chunk, 2), "memory": memory, "threads": threads}
    with Model.open(where, pack=packed(where, group), tuning=Tuning(**tuning), **options) as model:
        return digest(all_logits(model, chunk, company))


@pytest.mark.parametrize("name", [*NAMES, DEMO])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_with_a_pack_the_memory_budget_does_not_change_a_bit(reference, packed, name, share):
    """From the least, where all streams through a small ring, over some pinned blocks to everything resident."""
    where = directory_of(name)
    checkpoint, tuning = Checkpoint.open(where), Tuning(block_bytes=65536)
    options = {"context": 64, "chunk": 66, "tuning": tuning, "pack": Pack.open(packed(where), checkpoint)}
    room = int(share * sum(size for _, size in checkpoint.files))
    try:
        model = Model.open(checkpoint, memory=Model.least_budget(checkpoint, **options) + room, **options)
    except BudgetError as error:  # the process has grown in between
        model = Model.open(checkpoint, memory=error.least_bytes + room, **options)
    with model:
        if share == 0:
            assert not model.plan.pinned
        assert model.plan.resident or share < 1
        assert digest(all_logits(model, 33)) == reference[name]


@pytest.mark.parametrize("name", [*NAMES, DEMO])
@pytest.mark.parametrize(("block", "ring"), [(4096, 2), (16384, 3), (1 << 20, 2)])
def test_with_a_pack_blocks_and_ring_do_not_change_a_bit(reference, packed, name, block, ring):
    assert run_packed(name, packed, block_bytes=block, ring=ring, pin=False) == reference[name]


@pytest.mark.parametrize("name", [*NAMES, DEMO])
@pytest.mark.parametrize("threads", [1, 2])
def test_with_a_pack_threads_do_not_change_a_bit(reference, packed, name, threads):
    assert run_packed(name, packed, threads=threads) == reference[name]


@pytest.mark.parametrize("name", [*NAMES, DEMO])
@pytest.mark.parametrize(("chunk", "company"), [(1, False), (7, True), (32, False)])
def test_with_a_pack_chunks_and_company_do_not_change_a_bit(reference, packed, name, chunk, company):
    assert run_packed(name, packed, chunk=chunk, company=company) == reference[name]


@pytest.mark.parametrize("group", [20_000, 1 << 25])
def test_how_finely_a_pack_is_cut_into_runs_does_not_change_a_bit(reference, packed, group):
    assert run_packed("tiny-k3", packed, group=group) == reference["tiny-k3"]


def test_heads_whose_rows_are_no_multiple_of_a_band_are_attended_to_from_bands(tmp_path):
    """Two heads of 24 rows are three bands; a block may not begin inside of one of them."""
    sizes = Sizes(
        layers=2, experts=4, vocab=512, hidden=64, kda_heads=2, kda_head_dim=16, a_log_entries=4, mla_heads=6,
        q_lora_rank=32, kv_lora_rank=160, nope_head_dim=16, rope_head_dim=16, v_head_dim=8, dense_intermediate=64,
        top_k=2, shared_experts=1, expert_intermediate=32, latent=32, block_size=2, context=4096, mla_layers=(1, 2),
    )  # fmt: skip
    synth(tmp_path / "c", sizes)
    Packing(Checkpoint.open(tmp_path / "c"), tmp_path / "p").run()
    got = []
    for pack in (None, tmp_path / "p"):
        tuning = Tuning(block_bytes=12288, pin=False, ring=2)
        with Model.open(
            tmp_path / "c", pack=pack, context=64, chunk=66, memory="2GB", tuning=tuning
        ) as model:
            got.append(digest(all_logits(model, 33)))
            items = [item for item in model.tape.blocks.items if "kv_b_proj" in item.name]
            assert [(item.rows, item.granule) for item in items] == [
                (144, 24) if pack is None else (9, 3)
            ] * 2
    assert got[0] == got[1]


def test_these_packs_hold_packed_and_plain_bands_and_matrices_of_several_runs(packed):
    """Else the tests above would show little."""
    forms: set[WeightFormat] = set()
    for name in (*NAMES, DEMO):
        checkpoint = Checkpoint.open(directory_of(name))
        score = tape_score(checkpoint, Pack.open(packed(directory_of(name)), checkpoint))
        forms |= {run.form.fmt for matrix in score.matrices() for run in matrix.runs}
        assert len(score.items) == sum(len(matrix.runs) for matrix in score.matrices())
    assert {WeightFormat.BF12, WeightFormat.BF16} <= forms
    assert any(len(matrix.runs) > 2 for matrix in score.matrices())


def test_the_vectors_of_a_pack_are_those_of_the_checkpoint(packed):
    checkpoint = Checkpoint.open(DATA / "tiny-k3")
    pack = Pack.open(packed(DATA / "tiny-k3"), checkpoint)
    for vector in pack.directory.vectors:
        ours, theirs = pack.read_vector(vector.name), checkpoint.read_vector(vector.name)
        assert ours.shape == theirs.shape
        assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))
