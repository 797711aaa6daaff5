"""A shard's header, held against the file."""

from __future__ import annotations

import hashlib

import pytest
from broken_checkpoints import SECOND, TINY, join

from kimistream.checkpoint.header import read_header
from kimistream.errors import KimistreamError, ShardError


def entry(begin: int, end: int, dtype: str = "U8", shape: object = None) -> dict[str, object]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def refused(tmp_path, raw: bytes) -> str:
    """The message for a file of these bytes; it names the file and says how to fetch it."""
    path = tmp_path / "model-00001-of-000096.safetensors"
    path.write_bytes(raw)
    with pytest.raises(ShardError) as caught:
        read_header(path)
    assert str(path) in caught.value.what
    assert f"kimistream pull moonshotai/Kimi-K3 {tmp_path} --files {path.name}" in caught.value.remedy
    return caught.value.what


def test_a_golden_shard_is_read_as_the_safetensors_library_reads_it():
    safetensors = pytest.importorskip("safetensors")
    path = TINY / SECOND
    header = read_header(path)
    raw = path.read_bytes()
    assert header.size == len(raw)
    assert header.digest == hashlib.sha256(raw[: header.data_start]).digest()
    with safetensors.safe_open(path, "numpy") as theirs:
        assert set(theirs.keys()) == set(header.names)
        for name, found, offset, nbytes in header:
            part = theirs.get_slice(name)
            assert tuple(part.get_shape()) == found.shape
            assert part.get_dtype() == found.dtype
            if found.dtype != "BF16":
                assert raw[offset : offset + nbytes] == theirs.get_tensor(name).tobytes()


@pytest.mark.parametrize("cut", [1, 100, 1_000_000])
def test_a_cut_shard_is_refused_with_both_sizes(tmp_path, cut):
    raw = (TINY / SECOND).read_bytes()
    said = refused(tmp_path, raw[:-cut])
    assert f"cut short by {cut:,} bytes" in said
    assert f"the file has {len(raw) - cut:,} bytes, its header says {len(raw):,}" in said


def test_a_shard_that_is_too_long_is_refused_with_both_sizes(tmp_path):
    raw = (TINY / SECOND).read_bytes()
    said = refused(tmp_path, raw + b"\0")
    assert f"1 bytes too long: the file has {len(raw) + 1:,} bytes, its header says {len(raw):,}" in said


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_file_shorter_than_the_length_of_a_header_is_refused(tmp_path, size):
    assert f"it has {size} bytes" in refused(tmp_path, bytes(size))


def test_a_file_cut_inside_its_header_is_refused_with_both_sizes(tmp_path):
    raw = (TINY / SECOND).read_bytes()
    said = refused(tmp_path, raw[:1000])
    assert "it has 1,000 bytes, its header alone needs 120,752" in said


@pytest.mark.parametrize("length", [100_000_001, 1 << 40, (1 << 64) - 1])
def test_an_absurd_header_length_is_refused_and_not_read(tmp_path, length):
    said = refused(tmp_path, length.to_bytes(8, "little") + bytes(100))
    assert f"{length:,}" in said
    assert "100,000,000" in said


def test_a_web_page_in_place_of_a_shard_is_refused(tmp_path):
    refused(tmp_path, b"<!DOCTYPE html><html><body>404</body></html>")


@pytest.mark.parametrize(
    "header", [b"", b"not json", b"[]", b"7", b"{", b'{"a":', b"\xff\xfe{}", b"{}{}", b"[" * 5000]
)
def test_a_header_that_is_not_a_json_object_is_refused(tmp_path, header):
    assert "the header is not valid JSON" in refused(tmp_path, join(header, b""))


@pytest.mark.parametrize(
    "wrong",
    [
        7,
        None,
        [],
        {"dtype": 3, "shape": [4], "data_offsets": [0, 4]},
        {"dtype": "U8", "shape": 4, "data_offsets": [0, 4]},
        {"dtype": "U8", "shape": [-4], "data_offsets": [0, 4]},
        {"dtype": "U8", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "U8", "shape": [4.5], "data_offsets": [0, 4]},
        {"dtype": "U8", "shape": [1 << 80], "data_offsets": [0, 4]},
        {"dtype": "U8", "shape": [4], "data_offsets": [0]},
        {"dtype": "U8", "shape": [4], "data_offsets": [0, 4, 8]},
        {"dtype": "U8", "shape": [4], "data_offsets": [-4, 0]},
        {"dtype": "U8", "shape": [4], "data_offsets": ["0", "4"]},
        {"dtype": "U8", "shape": [4], "data_offsets": None},
        {"dtype": "U8", "shape": [4]},
        {"dtype": "Q3_K", "shape": [4], "data_offsets": [0, 4]},
        {"shape": [4], "data_offsets": [0, 4]},
    ],
)
def test_an_entry_that_is_not_understood_is_named(tmp_path, wrong):
    said = refused(tmp_path, join({"good": entry(0, 4), "the.bad.one": wrong}, bytes(8)))
    assert "the.bad.one" in said


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        (
            {"a": entry(0, 4), "b": entry(3, 8)},
            "a and b overlap: one ends at 4, the other begins at 3",
        ),
        ({"a": entry(0, 8), "b": entry(2, 4)}, "tensors a and b overlap"),
        ({"a": entry(0, 4), "b": entry(0, 4), "c": entry(4, 8)}, "overlap"),
        ({"a": entry(0, 3), "b": entry(5, 8)}, "bytes 3 to 5 of the data belong to no tensor (before b)"),
        ({"a": entry(2, 8)}, "bytes 0 to 2 of the data belong to no tensor (before a)"),
        ({"a": entry(0, 4)}, "4 bytes too long"),
        ({"a": entry(0, 9)}, "cut short by 1 bytes"),
        ({"a": entry(0, 1 << 50)}, "cut short by"),
        ({}, "8 bytes too long"),
        ({"a": entry(0, 8, "U8", [7])}, "tensor a has 8 bytes, its U8 [7] needs 7"),
        ({"a": entry(0, 8, "F32", [8])}, "tensor a has 8 bytes, its F32 [8] needs 32"),
        ({"a": entry(0, 8, "U8", [1 << 31, 1 << 31, 1 << 31])}, "would have 9,903,520,"),
        ({"a": {"dtype": "U8", "shape": [4], "data_offsets": [8, 4]}}, "tensor a has -4 bytes"),
    ],
)
def test_ranges_that_do_not_tile_the_data_are_refused(tmp_path, tensors, says):
    assert says in refused(tmp_path, join(tensors, bytes(8)))


def test_what_the_format_allows_is_accepted(tmp_path):
    path = tmp_path / "a.safetensors"
    tensors = {
        "__metadata__": {"format": "pt", "shape": "a text", "dtype": "also a text"},
        "last": entry(4, 8, "F32", [1]),
        "scalar": entry(0, 2, "BF16", []),
        "empty": entry(2, 2, "F64", [0, 5]),
        "first": entry(2, 4, "F4", [4]),
    }
    path.write_bytes(join(tensors, bytes(8)))
    header = read_header(path)
    assert header.names == ["last", "scalar", "empty", "first"]
    assert (header.offsets - header.data_start).tolist() == [4, 0, 2, 2]
    assert header.nbytes.tolist() == [4, 2, 0, 2]
    path.write_bytes(join({}, b""))
    assert read_header(path).names == []


def test_a_shard_that_is_a_directory_is_refused(tmp_path):
    with pytest.raises(KimistreamError, match=str(tmp_path)):
        read_header(tmp_path)
