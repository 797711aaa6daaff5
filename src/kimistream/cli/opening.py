"""The live line and the notes while a model is being opened.

Knows: that opening says what it does, and sometimes a line worth keeping.
Does not know: what is opened.
"""

from __future__ import annotations

from kimistream.cli.live import Live
from kimistream.cli.status import StatusLine


class Opening:
    """The live line and the notes while a model is being opened."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live = Live()
        self._line = StatusLine(self._live.text, quiet=quiet)

    def __enter__(self) -> Opening:
        self._line.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._line.__exit__(None, None, None)

    def note(self, text: str) -> None:
        """One line worth keeping."""
        if not self._quiet:
            self._line.note(f"kimistream: {text}")

    def status(self, text: str) -> None:
        """What is being done."""
        self._live.doing = text
