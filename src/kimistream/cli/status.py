"""The live line on stderr: where a pass is, how fast bytes come, how long it will take.

Knows: how to redraw one line without disturbing what is printed on stdout.
Does not know: what is being computed.

On a terminal the line is redrawn four times a second; elsewhere a plain line is written every ten
seconds, so that a log shows life without filling up.
"""

from __future__ import annotations

import re
import shutil
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from rich.cells import cell_len

from kimistream.cli.ticker import Ticker

_CLEAR = "\r\x1b[2K"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DIM, _PLAIN = "\x1b[2m", "\x1b[22m"


def harmless(text: str) -> str:
    """Text for a terminal: control characters, which could move the cursor or worse, become pictures."""
    return _CONTROL.sub(lambda match: _picture(ord(match.group())), text)


def _picture(code: int) -> str:
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


class StatusLine:
    """Redraws `text()` while it is entered; `write` prints to stdout around it."""

    def __init__(self, text: Callable[[], str], *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._text = text
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty()
        self._quiet = quiet
        self._lock = threading.Lock()
        self._ticker = Ticker("status line", self._redraw, self._log, terminal=self._live)
        self._column = 0

    def __enter__(self) -> StatusLine:
        if not self._quiet:
            self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ticker.stop()
        with self._lock:
            self._erase()

    def _redraw(self) -> None:
        with self._lock:
            self._draw()

    def _log(self) -> None:
        if text := self._text():
            print(text, file=self._stream, flush=True)

    def _draw(self) -> None:
        text = self._text()
        if not text:
            return
        text = text[: self._width() - 1]
        # text that stands in the middle of a line must not be overwritten: the status goes one below;
        # a newline and a step up find the place again even where the terminal scrolls
        self._stream.write(f"\n\x1b[2K{text}{self._back()}" if self._column else f"{_CLEAR}{text}")
        self._stream.flush()

    def _back(self) -> str:
        return f"\x1b[A\x1b[{self._column + 1}G"

    def _width(self) -> int:
        return max(shutil.get_terminal_size().columns, 20)

    def _erase(self) -> None:
        if self._live and not self._quiet:
            self._stream.write(f"\n\x1b[2K{self._back()}" if self._column else _CLEAR)
            self._stream.flush()

    def write(self, text: str) -> None:
        """Print text to stdout at once, with the live line out of the way."""
        if sys.stdout.isatty():
            text = harmless(text)
        with self._lock:
            self._erase()
            sys.stdout.write(text)
            sys.stdout.flush()
            if sys.stdout.isatty():
                self._moved(text)

    def aside(self, text: str) -> None:
        """Print text to stderr at once, dimmed on a terminal: what is not part of the answer."""
        if self._live:
            text = harmless(text)
        with self._lock:
            self._erase()
            self._stream.write(f"{_DIM}{text}{_PLAIN}" if self._live else text)
            self._stream.flush()
            if self._live:
                self._moved(text)

    def _moved(self, text: str) -> None:
        _, newline, tail = text.rpartition("\n")
        start = 0 if newline else self._column
        self._column = (start + cell_len(tail)) % self._width()

    def note(self, text: str) -> None:
        """Print one line to stderr, with the live line out of the way."""
        with self._lock:
            self._erase()
            if self._column and self._live:
                self._stream.write("\n")
                self._column = 0
            print(text, file=self._stream, flush=True)
