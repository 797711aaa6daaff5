"""The command that fetches a file of a checkpoint again, for the remedies of messages.

Knows: where the released checkpoints are published.
Does not know: how to download anything.
"""

from __future__ import annotations

from pathlib import Path

K3 = "moonshotai/Kimi-K3"
KIMI_LINEAR = "moonshotai/Kimi-Linear-48B-A3B-Instruct"


def fetch(path: Path, repo: str = K3) -> str:
    """One sentence with the command that puts the file at `path` there again."""
    return f"Fetch it again (delete it first): hf download {repo} {path.name} --local-dir {path.parent}"
