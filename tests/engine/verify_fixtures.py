"""A copy of the tiny checkpoint that tests may damage, and where its tensors lie."""

from __future__ import annotations

import shutil
from pathlib import Path

from kimistream.checkpoint.header import read_header
from kimistream.engine.deep import Deep, DeepCheck, judge, local_manifest
from kimistream.engine.findings import Finding
from kimistream.engine.verify import inspect

TINY = Path(__file__).parents[1] / "data" / "tiny-k3"
SHARD = "model-00002-of-000007.safetensors"


def copy_tiny(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


def place(directory: Path, shard: str, name: str) -> tuple[int, int]:
    """(offset, bytes) of a tensor in its file."""
    for found, _, offset, nbytes in read_header(directory / shard):
        if found == name:
            return offset, nbytes
    raise LookupError(name)


def deep_findings(directory: Path, **options: object) -> list[Finding]:
    inspected = inspect(directory)
    return judge(inspected, DeepCheck(inspected, **options).run())


def with_manifest(directory: Path, source: str = "local") -> Deep:
    """Give the directory a manifest of its files as they are."""
    import msgspec

    from kimistream.checkpoint.manifest import write_manifest

    inspected = inspect(directory)
    deep = DeepCheck(inspected).run()
    manifest = local_manifest(inspected, deep)
    if source == "hub":
        manifest = msgspec.structs.replace(manifest, source="hub", repo="owner/model", revision="f" * 40)
    write_manifest(directory, manifest)
    return deep
