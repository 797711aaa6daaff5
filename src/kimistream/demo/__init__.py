"""The checkpoint embedded in the package: a tiny trained Kimi K3 (docs/DEMO_MODEL.md).

Knows: where it is installed. `training` made it.
Does not know: what it contains.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from kimistream.errors import CheckpointError


def path() -> Path:
    """The directory of the embedded checkpoint. Raises CheckpointError where there is none."""
    directory = files("kimistream.demo") / "checkpoint"
    if not isinstance(directory, Path) or not directory.is_dir():
        raise CheckpointError(
            f"the embedded checkpoint is not installed as files ({directory})",
            "Install kimistream unpacked: pip install kimistream.",
        )
    return directory
