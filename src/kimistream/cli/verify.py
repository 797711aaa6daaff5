"""`kimistream verify`: is every byte of a checkpoint right, and if not, which command mends it?

Knows: the command's options, the report, and its JSON form.
Does not know: how anything is checked (engine.verify, engine.deep, engine.golden).
"""

from __future__ import annotations

import json as jsonlib
import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kimistream.budget import format_size
from kimistream.cli.options import Also, Whole, also_paths, at_least, checkpoint_path
from kimistream.cli.transfer import TransferDisplay, clock
from kimistream.errors import CheckpointError, Interrupted, UsageError

if TYPE_CHECKING:
    from kimistream.engine.deep import Deep
    from kimistream.engine.findings import Finding
    from kimistream.engine.golden import GoldenResult
    from kimistream.engine.verify import Inspected


def verify(
    checkpoint: str,
    /,
    *,
    deep: Annotated[bool, Parameter(negative=())] = False,
    write_manifest: Annotated[bool, Parameter(negative=())] = False,
    golden: Annotated[bool, Parameter(negative=())] = False,
    memory: str | None = None,
    workers: Whole | None = None,
    also: Also = None,
    json: Annotated[bool, Parameter(negative=())] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative=())] = False,
) -> None:
    """Check a checkpoint: headers, sizes and tensors at once, every byte with --deep.

    Exit code 0 when nothing is wrong, 1 otherwise; what is wrong is named with file and tensor, and with
    the command that fetches just that again.

    Parameters
    ----------
    checkpoint
        A directory in Kimi K3's layout.
    deep
        Read every byte once: sha256 of each file against the manifest (which `pull` leaves), NaN, infinity
        and invalid scales, tensors of zeros, holes. A stopped check goes on where it was.
    write_manifest
        Read every byte and note each file's sha256, for later checks. Only if nothing is wrong.
    golden
        Run the published prompt of the released Kimi K3 and compare tokens and logits.
    memory
        The budget of --golden, as 8GB. By default what is free, minus a reserve.
    workers
        Files read at once by --deep; by default two more than the cores.
    also
        A further directory, of another drive perhaps, that holds shards of the checkpoint; may be given again.
    json
        One JSON object on stdout.
    quiet
        No progress.
    """
    at_least("--workers", workers, 1)
    if memory is not None and not golden:
        raise UsageError("--memory belongs to --golden", "Leave it out, or add --golden.")

    from kimistream.engine.verify import inspect

    path, others = checkpoint_path(checkpoint), also_paths(also)
    started = time.perf_counter()
    inspected = inspect(path, others)
    if write_manifest and inspected.manifest is not None and inspected.manifest.source == "hub":
        raise UsageError(
            f"--write-manifest: {path} has a manifest with the hub's own digests, which says more",
            f"Check against it: kimistream verify {shlex.quote(str(path))} --deep",
        )
    if golden:
        from kimistream.checkpoint.config import load_config
        from kimistream.engine.golden import refuse_another_model

        refuse_another_model(load_config(path), path)
    read, findings = None, inspected.findings
    if deep or write_manifest:
        read, findings = _read_all(inspected, workers, quiet=quiet)
    wrong = [finding for finding in findings if not finding.harmless]
    written = _write(inspected, read) if write_manifest and read is not None and not wrong else None
    computed = _golden(path, others, memory, quiet=quiet) if golden and not wrong else None
    elapsed = time.perf_counter() - started
    command = _repair(inspected, wrong)
    if json:
        print(jsonlib.dumps(_fields(inspected, read, findings, computed, command, elapsed)))
    elif not quiet or wrong:
        for line in _report(inspected, read, findings, computed, written, elapsed):
            print(line)
    if wrong:
        things = "one thing is" if len(wrong) == 1 else f"{len(wrong)} things are"
        raise CheckpointError(f"{path}: {things} wrong", f"Run: {command}" if command else wrong[0].repair)
    if computed is not None and not computed.same:
        raise CheckpointError(
            f"{path}: the published results are not met",
            "Check the bytes with `kimistream verify --deep`; if they are right, this engine computes wrongly "
            "on this machine: please report it.",
        )


def _read_all(inspected: Inspected, workers: int | None, *, quiet: bool) -> tuple[Deep, list[Finding]]:
    from kimistream.engine.deep import DeepCheck, judge

    check = DeepCheck(inspected, workers=workers, note=lambda text: display.note(text))
    display = TransferDisplay("verify", check.progress.snapshot, quiet=quiet)
    try:
        with display:
            read = check.run()
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted(
            "verify stopped", "Run the same command again: files that were read are not read again."
        ) from None
    return read, judge(inspected, read)


def _write(inspected: Inspected, read: Deep) -> str:
    from kimistream.checkpoint.manifest import write_manifest
    from kimistream.engine.deep import local_manifest

    return str(write_manifest(inspected.directory, local_manifest(inspected, read)))


def _golden(path: Path, also: list[Path], memory: str | None, *, quiet: bool) -> GoldenResult:
    from kimistream.checkpoint.table import Checkpoint
    from kimistream.cli.status import StatusLine
    from kimistream.engine.golden import run_golden

    with StatusLine(lambda: "computing the published results", quiet=quiet) as status:
        return run_golden(
            Checkpoint.open(path, also), memory=memory, note=lambda text: status.note(f"kimistream: {text}")
        )


def _repair(inspected: Inspected, wrong: list[Finding]) -> str:
    """One command for all files that can be fetched again; empty where none can."""
    commands: dict[str, list[str]] = {}  # one for each directory
    for name in sorted({f.file for f in wrong if f.repair.startswith("kimistream pull ")}):
        head, _, file = inspected.repair(name).rpartition(" --files ")
        commands.setdefault(head, []).append(file)
    return " && ".join(f"{head} --files {' '.join(files)}" for head, files in commands.items())


def _report(
    inspected: Inspected,
    read: Deep | None,
    findings: list[Finding],
    computed: GoldenResult | None,
    written: str | None,
    elapsed: float,
) -> list[str]:
    manifest = inspected.manifest
    lines = [
        f"{inspected.directory}: {len(inspected.paths)} files, {inspected.tensors:,} tensors, "
        f"{format_size(inspected.nbytes)}; checked in {clock(elapsed)}"
    ]
    if not any(not finding.harmless for finding in inspected.findings):
        lines.append("  config, headers, sizes, tensors: all that the model needs is there")
    if manifest is not None:
        source = f"{manifest.repo} at {(manifest.revision or '?')[:12]}" if manifest.repo else "made here"
        lines.append(f"  manifest: {len(manifest.files)} files, {source}")
    if read is not None:
        right = sum(
            manifest is not None and name in manifest.files and o.sha256 == manifest.files[name].sha256
            for name, o in read.files.items()
        )
        lines.append(f"  every byte read; sha256 right for {right} of {len(read.files)} files")
        if manifest is None and written is None:
            lines.append(
                "  there is no manifest, so a wrong byte that is still a number cannot be seen: "
                f"`kimistream pull {inspected.origin.repo} {shlex.quote(str(inspected.directory))}` compares "
                "with the hub"
            )
    if written is not None:
        lines.append(f"  written: {written}")
    lines += [f"  {line}" for line in (computed.lines() if computed is not None else ())]
    lines += [f"  note: {finding} (as published)" for finding in findings if finding.harmless]
    for finding in findings:
        if not finding.harmless:
            lines.append(f"WRONG {finding}")
            lines.append(f"      {finding.repair}")
    if not any(not finding.harmless for finding in findings) and read is None and computed is None:
        lines.append(f"  next: kimistream verify {shlex.quote(str(inspected.directory))} --deep")
    return lines


def _fields(
    inspected: Inspected,
    read: Deep | None,
    findings: list[Finding],
    computed: GoldenResult | None,
    command: str,
    elapsed: float,
) -> dict[str, Any]:
    return {
        "directory": str(inspected.directory),
        "files": len(inspected.paths),
        "tensors": inspected.tensors,
        "bytes": inspected.nbytes,
        "manifest": inspected.manifest.source if inspected.manifest is not None else None,
        "deep": read is not None,
        "seconds": elapsed,
        "right": not any(not finding.harmless for finding in findings)
        and (computed is None or computed.same),
        "findings": [asdict(finding) for finding in findings],
        "repair": command,
        "golden": asdict(computed) | {"same": computed.same} if computed is not None else None,
    }
