"""What a person types: edited lines on a terminal, plain lines from a pipe.

Knows: line editing, history, and how a message of several lines is typed.
Does not know: what the lines mean.

On a terminal the prompt and the echo go to stderr, so that stdout has answers only. A line that ends in a
backslash goes on; on a terminal Esc and then Enter begins a new line too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kimistream.errors import UsageError

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

GO_ON = "\\"
_BLANK = "  "


class LineInput(Protocol):
    """Where messages come from."""

    interactive: bool

    def read(self, prompt: str) -> str | None:
        """The next message; None at the end. KeyboardInterrupt when Ctrl-C is typed."""


def open_input() -> LineInput:
    """A terminal's edited lines where there is a terminal, else plain lines."""
    return EditedLines() if sys.stdin.isatty() and sys.stderr.isatty() else PlainLines()


class PlainLines:
    """Lines of standard input; no prompt is shown."""

    interactive = False

    def __init__(self) -> None:
        self._count = 0

    def read(self, prompt: str) -> str | None:
        """The next message: a line, and those that follow it while they end in a backslash."""
        parts: list[str] = []
        while raw := sys.stdin.buffer.readline():
            self._count += 1
            try:
                line = raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UsageError(
                    f"standard input, line {self._count}: byte {error.start} is not UTF-8",
                    "Save the text as UTF-8.",
                ) from None
            if not line.endswith(GO_ON):
                return "\n".join([*parts, line])
            parts.append(line.removesuffix(GO_ON))
        return "\n".join(parts) if parts else None


class EditedLines:
    """Lines edited on a terminal, with the history of earlier ones."""

    interactive = True

    def __init__(self) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output

        self._session: PromptSession[str] = PromptSession(
            history=_history(),
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation=_BLANK,
            output=create_output(stdout=sys.stderr),
        )

    def read(self, prompt: str) -> str | None:
        """The next message; Ctrl-D on an empty line is the end."""
        try:
            return self._session.prompt(prompt)
        except EOFError:
            return None


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith(GO_ON):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def state_directory() -> Path:
    """Where programs keep what may be lost: $XDG_STATE_HOME/kimistream, or ~/.local/state/kimistream."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "kimistream"


def _history() -> History:
    """Lines typed before, in the state directory if it can be written; else those of this time only."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        directory = state_directory()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = directory / "history"
        file.touch(mode=0o600)
        if os.access(file, os.R_OK | os.W_OK):
            return FileHistory(str(file))
    except (OSError, RuntimeError):  # no home directory
        pass
    return InMemoryHistory()
