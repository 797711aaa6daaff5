"""A pack as a file: another checkpoint's, a cut one, a damaged one are refused by name (T2, T17)."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path

import msgspec
import pytest

from damage import flip
from kimistream.checkpoint import pack_format
from kimistream.checkpoint.header import read_header
from kimistream.checkpoint.pack import Pack
from kimistream.checkpoint.pack_format import HEADER_BYTES, PackedRun, encode_directory, encode_header
from kimistream.checkpoint.table import Checkpoint
from kimistream.errors import KimistreamError, PackError, ReadError

TINY = Path(__file__).parents[1] / "data" / "tiny-k3"
DENSE = "language_model.model.layers.4.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def tiny_pack(packed) -> Path:
    return packed(TINY)


@pytest.fixture
def copy(tiny_pack, tmp_path) -> Path:
    """A copy of the pack to damage."""
    return Path(shutil.copy(tiny_pack, tmp_path / "a copy.pack"))


@pytest.fixture
def other(tmp_path) -> Path:
    """A copy of the checkpoint to change."""
    return Path(shutil.copytree(TINY, tmp_path / "other"))


def refusal(path: Path, checkpoint: Path = TINY) -> PackError:
    with pytest.raises(PackError) as caught:
        Pack.open(path, Checkpoint.open(checkpoint))
    assert str(path) in caught.value.what
    assert caught.value.remedy
    return caught.value


# ---- whole ones


def test_a_pack_opens_with_its_checkpoint_and_with_a_copy_of_it(tiny_pack, other):
    assert Pack.open(tiny_pack, Checkpoint.open(TINY)).size == tiny_pack.stat().st_size
    assert Pack.open(str(tiny_pack), Checkpoint.open(other)).path == tiny_pack


def test_every_byte_of_the_file_belongs_to_the_header_an_entry_or_the_directory(tiny_pack):
    pack = Pack.open(tiny_pack)
    ranges = [(vector.offset, pack_format.padded(vector.nbytes)) for vector in pack.directory.vectors]
    ranges += [(run.offset, run.nbytes) for matrix in pack.directory.matrices for run in matrix.runs]
    ranges.append((pack.header.directory_offset, pack.header.directory_bytes))
    at = HEADER_BYTES
    for offset, nbytes in ranges:
        assert (offset, nbytes > 0) == (at, True)
        at += nbytes
    assert at == tiny_pack.stat().st_size


def test_the_directory_is_json_that_names_what_the_pack_was_made_from(tiny_pack):
    header = Pack.open(tiny_pack).header
    listed = json.loads(tiny_pack.read_bytes()[header.directory_offset :])
    text = [f"model-0000{n}-of-000007.safetensors" for n in range(1, 6)]  # the others are the image tower
    assert [shard[:2] for shard in listed["shards"]] == [[n, (TINY / n).stat().st_size] for n in text]
    assert listed["config"] == hashlib.sha256((TINY / "config.json").read_bytes()).hexdigest()
    assert DENSE in [matrix["name"] for matrix in listed["matrices"]]


# ---- of another checkpoint


def test_a_pack_of_another_architecture_is_refused(tiny_pack):
    error = refusal(tiny_pack, TINY.parent / "kimi-linear-tiny")
    assert "was made from another checkpoint" in error.what
    assert f"kimistream pack {TINY.parent / 'kimi-linear-tiny'}" in error.remedy


def test_the_same_shapes_with_other_numbers_in_one_matrix_are_refused_by_its_name(tiny_pack, other):
    """As after a fine-tune of some matrices: sizes, headers, first and last bytes are the same."""
    for path in other.glob("*.safetensors"):
        for name, _, offset, nbytes in read_header(path):
            if name == DENSE:
                data = bytearray(path.read_bytes())
                for i in range(offset, offset + nbytes, 2):
                    data[i] ^= 1  # the last bit of each number
                path.write_bytes(data)
    assert Checkpoint.open(other).identity == Checkpoint.open(TINY).identity
    assert f"the numbers of tensor {DENSE} are others" in refusal(tiny_pack, other).what


def test_other_first_or_last_bytes_of_a_shard_are_refused(tiny_pack, other):
    path = sorted(other.glob("*.safetensors"))[2]
    flip(path, path.stat().st_size - 1)
    assert "the first or last bytes of a shard are others" in refusal(tiny_pack, other).what


def test_another_header_with_the_same_tensors_is_refused(tiny_pack, other):
    path = sorted(other.glob("*.safetensors"))[1]
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = {"made": "later"}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    error = refusal(tiny_pack, other)
    assert path.name in error.what
    assert f"{path.stat().st_size:,}" in error.what
    # the same size: the metadata's text takes the place of spaces
    shorter = json.dumps(json.loads(data[8 : 8 + length]), separators=(",", ":")).encode()
    if len(shorter) <= length:
        path.write_bytes(data[:8] + shorter.ljust(length) + data[8 + length :])
        if shorter.ljust(length) != data[8 : 8 + length]:
            assert f"the header of {path.name} is another" in refusal(tiny_pack, other).what


def test_another_config_with_the_same_shapes_is_refused(tiny_pack, other):
    path = other / "config.json"
    path.write_text(path.read_text().replace("\n", "\n ", 1))
    assert "config.json is another" in refusal(tiny_pack, other).what


# ---- not whole, or damaged


def test_a_cut_pack_is_refused_with_both_sizes(copy):
    size = copy.stat().st_size
    for less in (1, 100_000, size - HEADER_BYTES, size - HEADER_BYTES + 1, size - 9, size - 3, size):
        with copy.open("r+b") as file:
            file.truncate(size - less)
        what = refusal(copy).what
        if size - less >= HEADER_BYTES:
            assert f"is cut short: it has {size - less:,} bytes, its header says {size:,}" in what


def test_a_pack_with_bytes_behind_it_is_refused(copy):
    with copy.open("ab") as file:
        file.write(b"x")
    assert "is too long" in refusal(copy).what


def test_what_is_no_pack_is_refused(tmp_path):
    path = tmp_path / "x.pack"
    for data in (b"", b"no", b"KIMIPAC", b"KIMIPACK", bytes(5000), b"\x93NUMPY" + bytes(5000)):
        path.write_bytes(data)
        refusal(path)
    assert "does not exist" in refusal(tmp_path / "missing.pack").what
    (tmp_path / "begun.pack.partial").write_bytes(b"")
    assert "is not finished yet" in refusal(tmp_path / "begun.pack").what
    assert "is not a file" in refusal(tmp_path).what


def test_a_newer_format_is_told_as_such(copy):
    flip(copy, 8, 3)
    assert "has format 2, understood is 1" in refusal(copy).what


def test_a_flipped_bit_anywhere_in_header_or_directory_is_refused(copy):
    rnd = random.Random(3)
    size, header = copy.stat().st_size, Pack.open(copy).header
    places = [*range(0, 184, 3), 184, 1000, 4095, header.directory_offset, size - 1]
    places += [rnd.randrange(header.directory_offset, size) for _ in range(20)]
    for offset in places:
        bit = 1 << rnd.randrange(8)
        flip(copy, offset, bit)
        refusal(copy)
        flip(copy, offset, bit)
    assert Pack.open(copy).size == size


def test_a_flipped_bit_anywhere_in_a_vector_or_behind_it_is_refused_when_it_is_read(copy):
    rnd = random.Random(4)
    pack = Pack.open(copy)
    for vector in rnd.sample(pack.directory.vectors, 12):
        offset = vector.offset + rnd.randrange(pack_format.padded(vector.nbytes))
        flip(copy, offset)
        with pytest.raises(PackError, match="is damaged: vector") as caught:
            Pack.open(copy, Checkpoint.open(TINY)).read_vector(vector.name)
        assert vector.name in caught.value.what
        flip(copy, offset)


def rewritten(path: Path, change) -> None:
    """Write a pack anew with another directory, all digests right: what only a forger would make."""
    pack = Pack.open(path)
    data = path.read_bytes()[: pack.header.directory_offset]
    listed = encode_directory(change(pack.directory))
    digest = hashlib.sha256(listed).digest()
    header = pack.header._replace(
        nbytes=len(data) + len(listed), directory_bytes=len(listed), directory_sha256=digest
    )
    path.write_bytes(encode_header(header) + data[HEADER_BYTES:] + listed)


def other_run(directory, **changes):
    matrix = directory.matrices[5]
    run = msgspec.structs.replace(matrix.runs[0], **changes)
    matrix = msgspec.structs.replace(matrix, runs=(run, *matrix.runs[1:]))
    matrices = (*directory.matrices[:5], matrix, *directory.matrices[6:])
    return msgspec.structs.replace(directory, matrices=matrices)


@pytest.mark.parametrize(
    "changes",
    [{"offset": 4096}, {"rows": 3}, {"rows": -16}, {"row0": 1}, {"band_bytes": 0}, {"band_bytes": 65}],
)
def test_a_directory_whose_entries_do_not_tile_the_file_is_refused(copy, changes):
    rewritten(copy, lambda directory: other_run(directory, **changes))
    assert "has a directory that does not hold" in refusal(copy).what


@pytest.mark.parametrize(
    "changes", [{"form": "BF9"}, {"form": "F32"}, {"form": "BF12"}, {"room": 160}, {"room": -1}]
)
def test_a_form_that_is_not_understood_is_refused_when_the_tape_is_laid_out(copy, changes):
    from kimistream.model.order import tape_score

    rewritten(copy, lambda directory: other_run(directory, **changes))
    checkpoint = Checkpoint.open(TINY)
    with pytest.raises(PackError, match="in a form that is not understood"):
        tape_score(checkpoint, Pack.open(copy, checkpoint))


@pytest.mark.parametrize("kind", ["matrices", "vectors"])
def test_a_pack_without_a_tensor_that_is_needed_is_refused_by_its_name(copy, kind):
    from kimistream.model.order import tape_score
    from kimistream.model.vectors import Vectors

    def without_last(directory):
        entries = getattr(directory, kind)
        renamed = msgspec.structs.replace(entries[-1], name="another")
        return msgspec.structs.replace(directory, **{kind: (*entries[:-1], renamed)})

    name = getattr(Pack.open(copy).directory, kind)[-1].name
    rewritten(copy, without_last)
    checkpoint, pack = Checkpoint.open(TINY), Pack.open(copy)
    load = (
        (lambda: Vectors(checkpoint.config, pack))
        if kind == "vectors"
        else lambda: tape_score(checkpoint, pack)
    )
    with pytest.raises(PackError, match="which the model needs") as caught:
        load()
    assert name in caught.value.what
    if kind == "matrices":
        assert "has no tensor another" in refusal(copy).what


def test_directories_of_random_bytes_never_give_a_traceback(copy):
    rnd = random.Random(5)
    good = encode_directory(Pack.open(copy).directory)
    for _ in range(60):
        data = bytearray(good)
        for _ in range(rnd.randrange(1, 4)):
            data[rnd.randrange(len(data))] = rnd.randrange(256)
        try:
            directory = pack_format.decode_directory(bytes(data), copy)
            pack_format.check_layout(directory, Pack.open(copy).header, copy)
        except KimistreamError:
            continue


def test_bands_are_counted_by_sixteen_rows():
    run = PackedRun(32, 17, "BF16", 0, 640, 4096)
    assert (run.bands, run.nbytes) == (2, 1280)


def test_a_pack_that_is_cut_after_it_was_opened_is_an_error_of_reading(copy):
    pack = Pack.open(copy)
    with copy.open("r+b") as file:
        file.truncate(HEADER_BYTES)
    with pytest.raises(ReadError, match="too early"):
        pack.read_vector(pack.directory.vectors[0].name)
