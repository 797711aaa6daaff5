"""The display of long work on many files: a line for all of it, and one for each file under work.

Knows: terminals (several lines, redrawn) and logs (one line every ten seconds).
Does not know: what the work is; it looks at a `Progress`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from kimistream.budget import format_size
from kimistream.checkpoint.progress import FileProgress, Snapshot
from kimistream.cli.ticker import Ticker

_MOST_FILES = 12


class TransferDisplay:
    """Shows `look()` while it is entered; `note` prints a line above."""

    def __init__(
        self, verb: str, look: Callable[[], Snapshot], *, quiet: bool = False, stream: TextIO | None = None
    ) -> None:
        self._verb, self._look, self._quiet = verb, look, quiet
        self._stream = stream if stream is not None else sys.stderr
        self._console = Console(file=self._stream, highlight=False)
        self._live: Live | None = None
        self._ticker = Ticker("transfer display", self._draw, self._log, terminal=self._stream.isatty())

    def __enter__(self) -> TransferDisplay:
        if self._quiet:
            return self
        if self._stream.isatty():
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ticker.stop()
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """One line that stays."""
        if not self._quiet:
            self._console.print(Text(f"kimistream: {text}"), soft_wrap=True)

    def _draw(self) -> None:
        if self._live is not None:
            lines = Text(self._lines(self._look()), no_wrap=True, overflow="ellipsis")
            self._live.update(lines, refresh=True)

    def _log(self) -> None:
        self._console.print(Text(total_line(self._verb, self._look())), soft_wrap=True)

    def _lines(self, seen: Snapshot) -> str:
        lines = [file_line(file) for file in seen.active[:_MOST_FILES]]
        if len(seen.active) > _MOST_FILES:
            lines.append(f"  and {len(seen.active) - _MOST_FILES} more")
        return "\n".join([*lines, total_line(self._verb, seen)])


def total_line(verb: str, seen: Snapshot) -> str:
    """All of it in a line: "pull: 12 of 96 files, 203 GB of 1.56 TB (13 %), 812 MB/s, 27 min left"."""
    if not seen.nbytes:
        return f"{verb}: looking"
    share = 100 * seen.done / seen.nbytes
    left = f", {clock(seen.seconds_left)} left" if seen.seconds_left is not None else ""
    return (
        f"{verb}: {seen.files_done} of {seen.files} files, {format_size(seen.done)} of "
        f"{format_size(seen.nbytes)} ({share:.0f} %), {format_size(seen.rate)}/s{left}"
    )


def file_line(file: FileProgress) -> str:
    """One file: what is done with it, how far, how fast, how long still."""
    share = 100 * file.done / file.size if file.size else 100
    left = f", {clock((file.size - file.done) / file.rate)} left" if file.rate > 0 else ""
    size, rate = format_size(file.size), format_size(file.rate)
    return f"  {file.name}  {file.phase}  {share:.0f} % of {size}, {rate}/s{left}"


def clock(seconds: float) -> str:
    """Seconds in the unit a person would say."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"
