"""What a check of a checkpoint found: each thing with its file, its tensor, and the command that mends it.

Knows: how a finding is put, and which repository a directory came from.
Does not know: how anything is checked.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from kimistream.checkpoint.fetch import K3, KIMI_LINEAR
from kimistream.checkpoint.manifest import Manifest
from kimistream.checkpoint.pull_state import STATE_NAME
from kimistream.checkpoint.whole import FOLDER


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong (or, with `harmless`, only remarkable). `repair`: a command, or advice.

    zeros: it is about zeros, which a right digest shows to be as published.
    """

    file: str
    what: str
    repair: str = ""
    tensor: str | None = None
    zeros: bool = False
    harmless: bool = False

    def __str__(self) -> str:
        where = f"{self.file}: tensor {self.tensor}" if self.tensor else self.file
        return f"{where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a directory's files can be fetched again."""

    directory: Path
    repo: str

    def repair(self, name: str) -> str:
        """The command that fetches one file again and checks it."""
        where, file = shlex.quote(str(self.directory)), shlex.quote(name)
        return f"kimistream pull {self.repo} {where} --files {file}"


def origin_of(directory: Path, manifest: Manifest | None) -> Origin:
    """By the manifest, else by what a pull remembers, else by the kind of model."""
    if manifest is not None and manifest.repo:
        return Origin(directory, manifest.repo)
    try:
        pin = json.loads((directory / FOLDER / STATE_NAME).read_bytes())
        if isinstance(pin, dict) and isinstance(pin.get("repo"), str):
            return Origin(directory, pin["repo"])
    except (OSError, ValueError, RecursionError):
        pass
    try:
        flat = json.loads((directory / "config.json").read_bytes()).get("model_type") == "kimi_linear"
    except (OSError, ValueError, AttributeError, RecursionError):
        flat = False
    return Origin(directory, KIMI_LINEAR if flat else K3)
