"""`kimistream pack`: the dense weights in a smaller form, in the order of use, losslessly.

Knows: the command's options, its live line and its report.
Does not know: how a pack is made (engine.packing) or compared (engine.pack_verify).
"""

from __future__ import annotations

import json as jsonlib
import shlex
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kimistream.budget import format_size
from kimistream.cli.options import Also, FilePath, Whole, also_paths, at_least, checkpoint_path
from kimistream.cli.status import StatusLine
from kimistream.cli.transfer import clock
from kimistream.errors import Interrupted

if TYPE_CHECKING:
    from kimistream.checkpoint.progress import Progress
    from kimistream.engine.pack_verify import Verified
    from kimistream.engine.packing import Packed


def pack(
    checkpoint: str,
    out: FilePath,
    /,
    *,
    verify: Annotated[bool, Parameter(negative=())] = False,
    memory: str | None = None,
    threads: Whole | None = None,
    also: Also = None,
    json: Annotated[bool, Parameter(negative=())] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative=())] = False,
) -> None:
    """Write the dense weights of a checkpoint once more, in three quarters of the bytes, for faster runs.

    The file is used with `run --pack OUT`; every logit stays the same bit for bit. It may lie on another
    drive than the checkpoint: then both are read at once. A run that was stopped or killed goes on where it
    was when the same command is given again.

    Parameters
    ----------
    checkpoint
        A directory in Kimi K3's layout, or `demo`.
    out
        The file to write, for example /fast/kimi.pack.
    verify
        At the end, or for a pack that is there already, read all of it again and compare every weight with
        the checkpoint.
    memory
        The budget for the whole process, as 1GB. By default what is free, minus a reserve.
    threads
        Compute threads; by default the physical cores. The file does not depend on it.
    also
        A further directory, of another drive perhaps, that holds shards of the checkpoint; may be given again.
    json
        One JSON object on stdout.
    quiet
        No progress and no report; errors only.
    """
    at_least("--threads", threads, 1)
    path = checkpoint_path(checkpoint)

    from kimistream.checkpoint.pack import Pack
    from kimistream.checkpoint.table import Checkpoint
    from kimistream.engine.pack_verify import PackVerify
    from kimistream.engine.packing import Packing

    opened = Checkpoint.open(path, also_paths(also))
    compared = None
    live = _Live()
    with StatusLine(live.text, quiet=quiet or json) as line:

        def note(text: str) -> None:
            if not quiet:
                line.note(f"kimistream: {text}")

        packing = Packing(opened, out, memory=memory, threads=threads, note=note, status=live.say)
        live.follow("packing", packing.progress, packing)
        try:
            packed = packing.run()
        except (KeyboardInterrupt, Interrupted):
            raise Interrupted(
                "pack stopped", "Run the same command again: it goes on where it was."
            ) from None
        if verify:
            check = PackVerify(
                opened, Pack.open(out, opened), memory=memory, threads=threads, note=note, status=live.say
            )
            live.follow("comparing", check.progress)
            compared = check.run()
    if json:
        print(jsonlib.dumps(_fields(packed, compared)))
    elif not quiet:
        speaks = (path / "tiktoken.model").exists()
        print("\n".join(_report(checkpoint, packed, compared, speaks)))


class _Live:
    """What the live line says."""

    def __init__(self) -> None:
        self._doing = ""
        self._verb = ""
        self._progress: Progress | None = None
        self._packing: Any = None

    def say(self, text: str) -> None:
        self._doing = text

    def follow(self, verb: str, progress: Progress, packing: Any = None) -> None:
        self._verb, self._progress, self._packing = verb, progress, packing

    def text(self) -> str:
        """The line: share, rate, time left, and what the bytes became so far."""
        if self._doing or self._progress is None:
            return self._doing
        seen = self._progress.snapshot()
        if not seen.nbytes:
            return f"{self._verb}: looking"
        left = f", {clock(seen.seconds_left)} left" if seen.seconds_left is not None else ""
        written = self._packing.written_bytes if self._packing is not None else 0
        became = f", {format_size(written)} written" if written else ""
        return (
            f"{self._verb}: {format_size(seen.done)} of {format_size(seen.nbytes)} "
            f"({100 * seen.done / seen.nbytes:.0f} %){became}, {format_size(seen.rate)}/s{left}"
        )


def _report(checkpoint: str, packed: Packed, compared: Verified | None, speaks: bool) -> list[str]:
    share = 100 * packed.nbytes / packed.source_bytes
    fresh = packed.source_bytes - packed.earlier_bytes
    lines = []
    if fresh:
        lines.append(
            f"{packed.path}: {format_size(packed.source_bytes)} of dense weights in "
            f"{format_size(packed.nbytes)} ({share:.1f} %), {format_size(fresh)} of them packed in "
            f"{clock(packed.seconds)}, {format_size(fresh / max(packed.seconds, 1e-9))}/s"
        )
        if packed.plain_bytes:
            lines.append(
                f"  {format_size(packed.plain_bytes)} would not have become smaller and are stored as they are"
            )
    else:
        lines.append(
            f"{packed.path}: a whole pack of {checkpoint} already, {format_size(packed.nbytes)} ({share:.1f} % "
            f"of the dense weights)"
        )
    if compared is not None:
        lines.append(
            f"  every weight compared with the checkpoint: {compared.tensors} tensors are the same "
            f"({clock(compared.seconds)})"
        )
    where = f"{shlex.quote(checkpoint)} --pack {shlex.quote(str(packed.path))}"
    prompt = "--prompt Hello" if speaks else "--ids 1,2,3"
    lines.append(f"Try: kimistream run {where} {prompt}")
    return lines


def _fields(packed: Packed, compared: Verified | None) -> dict[str, Any]:
    return {
        "pack": str(packed.path),
        "source_bytes": packed.source_bytes,
        "bytes": packed.nbytes,
        "earlier_bytes": packed.earlier_bytes,
        "plain_bytes": packed.plain_bytes,
        "seconds": packed.seconds,
        "compared_tensors": compared.tensors if compared is not None else None,
        "compare_seconds": compared.seconds if compared is not None else None,
    }
