"""`kimistream pull`: a checkpoint from the hub, every byte of it checked.

Knows: the command's options and what is said at its end.
Does not know: how files are fetched (checkpoint.pull).
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kimistream.budget import format_size
from kimistream.cli.options import usable_path
from kimistream.cli.transfer import TransferDisplay, clock
from kimistream.errors import Interrupted, UsageError

_LAYERS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def pull(
    repo: str,
    directory: str | None = None,
    /,
    *,
    revision: str | None = None,
    only: str | None = None,
    layers: str | None = None,
    files: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())] = None,
    workers: int = 8,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative=())] = False,
) -> None:
    """Fetch a checkpoint and check every byte against the hub; resumes after anything.

    `kimistream pull DIR` fetches moonshotai/Kimi-K3. A token is taken from HF_TOKEN or `hf auth login`,
    another hub from HF_ENDPOINT. Run the same command again to go on after a stop.

    Parameters
    ----------
    repo
        OWNER/NAME on the hub; may be left out for Kimi K3.
    directory
        Where the files go. It is made if need be.
    revision
        A branch, tag or commit; by default main. The commit is remembered: a resumed pull stays with it.
    only
        `text` leaves out the shards that hold only the image tower.
    layers
        Only the shards of these layers, counted from 0, as 0-11, with the embedding and the head.
    files
        Only these files, each checked again even if it was right before.
    workers
        How many files are fetched at once.
    quiet
        No progress; errors only.
    """
    from kimistream.checkpoint.fetch import K3
    from kimistream.checkpoint.pull import Pull, Wanted

    if directory is None:
        repo, directory = K3, repo
    if only not in (None, "text"):
        raise UsageError(f"--only {only}: must be text", "Write --only text, or leave it out.")
    if files and (only or layers):
        raise UsageError("--files excludes --only and --layers", "Give one of them.")
    wanted = Wanted(repo, revision, only == "text", _layers(layers), tuple(files or ()))
    usable_path("the directory", directory)
    work = Pull(directory, wanted, workers=workers, note=lambda text: display.note(text))
    display = TransferDisplay("pull", work.progress.snapshot, quiet=quiet)
    try:
        with display:
            done = work.run()
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted(
            f"pull stopped; what has arrived stays in {directory}",
            "Run the same command again: it goes on from here.",
        ) from None
    if quiet:
        return
    seen = work.progress.snapshot()
    display.note(
        f"{done.chosen} files ({format_size(done.nbytes)}) of {repo} at {done.commit[:12]} are in "
        f"{directory}, each as the hub publishes it; {len(done.fetched)} were fetched now, in "
        f"{clock(seen.elapsed)}"
    )
    where = shlex.quote(str(Path(directory)))
    whole = done.complete or only is not None
    display.note(
        f"next: kimistream run {where} --prompt Hello" if whole else f"next: kimistream verify {where}"
    )


def _layers(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = _LAYERS.fullmatch(text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if first > last:
        raise UsageError(f"--layers {text}: must be FIRST-LAST, counted from 0", "For example --layers 0-11.")
    return first, last
