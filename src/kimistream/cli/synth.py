"""`kimistream synth`: a checkpoint of random numbers in the released layout.

Knows: its options, and how to show its progress.
Does not know: the layout (checkpoint.released) or how it is written (checkpoint.synth).
"""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from kimistream.budget import format_size
from kimistream.cli.options import Whole, at_least, layer_list, usable_path
from kimistream.cli.status import StatusLine
from kimistream.errors import UsageError


def synth(
    directory: str,
    /,
    *,
    layers: Whole | None = None,
    experts: Whole | None = None,
    vocab: Whole | None = None,
    hidden: Whole | None = None,
    mla: str | None = None,
    seed: Whole = 0,
    full: Annotated[bool, Parameter(negative=())] = False,
    sparse: Annotated[bool, Parameter(negative=())] = False,
    threads: Whole = 2,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative=())] = False,
) -> None:
    """Write a checkpoint of random numbers in Kimi K3's layout, to learn how fast this machine would be.

    The sizes are the released ones where no option changes them. The text it gives means nothing.

    Parameters
    ----------
    directory
        A new directory, or the one of a run that was stopped.
    layers
        How many layers (released: 93).
    experts
        How many routed experts a layer has (released: 896).
    vocab
        How many tokens (released: 163840).
    hidden
        The width of the model (released: 7168).
    mla
        The layers with full attention, counted from one, as 4,5; by default every fourth and the last.
    seed
        Another seed gives other numbers.
    full
        The whole released shape, image tower included; needs --sparse or 1.56 TB.
    sparse
        Leave large matrices and experts as holes: the sizes are real, the disk use is a few hundred MB.
    threads
        Threads that write.
    quiet
        No progress.
    """
    from kimistream.checkpoint.synth import synth as write
    from kimistream.checkpoint.synth import synth_sizes

    target = usable_path("the directory", directory)
    at_least("--seed", seed, 0)
    at_least("--threads", threads, 1)
    if full and any(value is not None for value in (layers, experts, vocab, hidden, mla)):
        raise UsageError(
            "--full is the released shape: it excludes --layers, --experts, --vocab, --hidden and --mla",
            "Leave out --full, or the others.",
        )
    chosen = layer_list("--mla", mla) if mla is not None else None
    sizes = synth_sizes(layers, experts, vocab, hidden, chosen, full=full)
    done = [0, 1]
    started = time.perf_counter()

    def progress(written: int, whole: int) -> None:
        done[:] = written, whole

    def line() -> str:
        seconds = max(time.perf_counter() - started, 1e-9)
        rate = done[0] / seconds
        left = f", {(done[1] - done[0]) / rate:.0f} s left" if rate > 0 else ""
        return f"{format_size(done[0])} of {format_size(done[1])} written, {format_size(rate)}/s{left}"

    with StatusLine(line, quiet=quiet) as status:
        written = write(target, sizes, seed=seed, sparse=sparse, progress=progress, threads=threads)
        if not quiet:
            seconds = time.perf_counter() - started
            status.note(
                f"{written.directory}: {written.shards} shards, {format_size(written.nbytes)} "
                f"({format_size(written.disk_bytes)} on disk) in {seconds:.1f} s\n"
                f"Try: kimistream run {written.directory} --ids 1,2,3 --max-tokens 2 --memory 4GB"
            )
