"""`kimistream doctor`: what this machine can do with the model, in words a newcomer understands.

Knows: how the diagnosis is put on the screen and into JSON.
Does not know: how it is made (engine.doctor).
"""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kimistream.budget import format_size
from kimistream.cli.options import Also, Whole, also_paths, at_least, checkpoint_path

if TYPE_CHECKING:
    from kimistream.engine.doctor import Diagnosis, Prediction


def doctor(
    checkpoint: str = ".",
    /,
    *,
    context: Whole = 4096,
    also: Also = None,
    json: Annotated[bool, Parameter(negative=())] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative=())] = False,
) -> None:
    """Measure this machine and tell how fast the model would run on it, and what to type next.

    Takes about half a minute. Where there is no checkpoint to measure the disk on, a trial file of up to
    1 GB is written and deleted again.

    Parameters
    ----------
    checkpoint
        A checkpoint, or the directory that one shall go to; by default this directory.
    context
        Positions of a sequence, prompt and answer together.
    also
        A further directory, of another drive perhaps, that holds shards of the checkpoint; may be given again.
    json
        One JSON object on stdout.
    quiet
        No progress.
    """
    at_least("--context", context, 1)

    from kimistream.cli.status import StatusLine
    from kimistream.engine.doctor import diagnose

    doing = ["looking"]
    with StatusLine(lambda: doing[0], quiet=quiet):
        found = diagnose(
            checkpoint_path(checkpoint),
            also=also_paths(also),
            context=context,
            say=lambda text: doing.__setitem__(0, text),
        )
    if json:
        print(jsonlib.dumps(_fields(found)))
        return
    print("\n".join(report(found)))


def report(found: Diagnosis) -> list[str]:
    """The diagnosis in lines."""
    cpu, drive, rates = found.processor, found.drive, found.rates
    lines = [
        f"processor  {cpu.model}: {cpu.logical} CPUs, {cpu.vectors}; {cpu.threads} threads would compute",
        f"memory     {format_size(found.memory.total)}, {format_size(found.memory.budget)} to be had "
        f"({found.memory.bound}); reads {format_size(found.memory_rate)}/s",
        f"disk       {drive.device}, {drive.file_system}{_kind(found)}; {format_size(drive.free)} free of "
        f"{format_size(drive.total)}",
    ]
    if rates is not None:
        how = "direct reads" if rates.direct else "direct reads refused"
        lines.append(
            f"           {format_size(rates.sequential)}/s in a row, {format_size(rates.scattered)}/s "
            f"scattered ({how} of {format_size(rates.request_bytes)}, {rates.depth} at once, {rates.on})"
        )
    else:
        lines.append(f"           not measured: {found.unmeasured}")
    lines.append(f"model      {found.directory}: {found.checkpoint}")
    if found.needed_bytes:
        lines.append(f"           {format_size(found.needed_bytes)} to fetch (the text model)")
    lines += ["", *_table(found), ""]
    lines += [f"note: {remark}" for remark in found.remarks]
    lines += [f"verdict: {found.verdict}", f"next: {found.command}"]
    return lines


def _kind(found: Diagnosis) -> str:
    rates, drive = found.rates, found.drive
    if drive.network:
        return ", on the network"
    if drive.rotating is None:
        return ""
    if not drive.rotating:
        return ", solid state"
    if rates is not None and rates.scattered * 2 > rates.sequential:
        return ", called rotating by the system (as virtual disks are), solid state by its scattered reads"
    return ", rotating"


def _table(found: Diagnosis) -> list[str]:
    lines = [
        f"the least memory for it is {format_size(found.least)}; a token is expected to take:",
        "  memory     dense weights kept  experts kept  read per token     s/token  with a pack",
    ]
    packed = {each.budget: each for each in found.predictions if each.storage == "pack"}
    for each in found.predictions:
        if each.storage == "pack":
            continue
        mark = ""
        if each.budget == found.memory.budget:
            mark = "  <- what there is now"
        elif not each.fits:
            mark = "  (more than there is)"
        lines.append(_row(each, packed.get(each.budget)) + mark)
    return lines


def _row(each: Prediction, packed: Prediction | None) -> str:
    seconds = f"{each.seconds:10.2f}" if each.seconds else "         ?"
    with_pack = f"{packed.seconds:11.2f}" if packed is not None and packed.seconds else "          ?"
    return (
        f"  {format_size(each.budget):<10} {100 * each.kept_share:16.0f} %  {100 * each.cached_share:10.1f} %  "
        f"{format_size(each.disk_bytes):>14}  {seconds}  {with_pack}"
    )


def _fields(found: Diagnosis) -> dict[str, Any]:
    fields = asdict(found)
    fields["directory"] = str(found.directory)
    fields["drive"]["directory"] = str(Path(found.drive.directory))
    return fields
