"""What the tests of pull share: a small repository, quick limits, and a look at what arrived."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

from hub_server import REPO, FakeHub

from kimistream.checkpoint.pull import Pull, Wanted
from kimistream.checkpoint.pull_patience import Policy

QUICK = Policy(
    stall_seconds=0.5,
    slow_bytes=2000,
    slow_seconds=0.5,
    attempts=8,
    first_attempts=4,
    refusals=3,
    wait_first=0.01,
    wait_most=0.05,
    wait_told_most=0.3,
    progress_bytes=1000,
)
SHARDS = [f"model-{i:05d}-of-000005.safetensors" for i in range(1, 6)]
MAP = {
    "language_model.model.layers.0.a": SHARDS[0],
    "language_model.model.layers.1.a": SHARDS[1],
    "language_model.model.layers.2.a": SHARDS[2],
    "language_model.model.embed_tokens.weight": SHARDS[3],
    "language_model.lm_head.weight": SHARDS[3],
    "vision_tower.a": SHARDS[4],
    "mm_projector.a": SHARDS[4],
}


def some_files(seed: int = 0, size: int = 150_000) -> dict[str, bytes]:
    rnd = random.Random(seed)
    files = {
        "config.json": b'{"model_type": "kimi_k3"}',
        "model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": MAP}).encode(),
        "docs/notes.md": b"notes\n" * 10,
        "empty.txt": b"",
    }
    return files | {name: rnd.randbytes(size + 1000 * i) for i, name in enumerate(SHARDS)}


def pull(endpoint: str, directory: Path, *, notes: list[str] | None = None, policy: Policy = QUICK, **wanted):
    workers = wanted.pop("workers", 3)
    token = wanted.pop("token", None)
    work = Pull(
        directory,
        Wanted(wanted.pop("repo", REPO), **wanted),
        workers=workers,
        endpoint=endpoint,
        token=token,
        policy=policy,
        note=(notes if notes is not None else []).append,
    )
    return work.run()


def held(directory: Path) -> dict[str, bytes]:
    """Every file that stands under a name of its own, by name."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and ".kimistream" not in path.parts and path.name != "kimistream-manifest.json"
    }


def assert_manifest(directory: Path, hub: FakeHub, names: set[str]) -> None:
    manifest = json.loads((directory / "kimistream-manifest.json").read_text())
    assert manifest["source"] == "hub"
    assert manifest["repo"] == REPO
    assert manifest["revision"] == hub.commit
    assert set(manifest["files"]) == names
    for name, entry in manifest["files"].items():
        data = hub.files[name]
        assert entry == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
