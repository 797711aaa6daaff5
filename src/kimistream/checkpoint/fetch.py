"""The command that fetches a file of a checkpoint again, for the remedies of messages.

Knows: where the released checkpoints are published.
Does not know: how to download anything (pull).
"""

from __future__ import annotations

import shlex
from pathlib import Path

K3 = "moonshotai/Kimi-K3"
KIMI_LINEAR = "moonshotai/Kimi-Linear-48B-A3B-Instruct"


def fetch(path: Path, repo: str = K3) -> str:
    """One sentence with the command that puts the file at `path` there, checked, whatever is there now."""
    where, name = shlex.quote(str(path.parent)), shlex.quote(path.name)
    return f"Fetch it with: kimistream pull {repo} {where} --files {name}"
