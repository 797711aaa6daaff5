"""The thread behind a display: it redraws on a terminal, and writes a line now and then to a log.

Knows: how often.
Does not know: what is drawn, or where.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

TICK = 0.25
LOG_EVERY = 10.0
"""Seconds."""


class Ticker:
    """Calls `draw` every quarter of a second on a terminal, else `log` every ten seconds, until `stop`."""

    def __init__(
        self, name: str, draw: Callable[[], None], log: Callable[[], None], *, terminal: bool
    ) -> None:
        self._draw, self._log, self._terminal = draw, log, terminal
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; the first call comes after the first interval."""
        self._thread.start()

    def stop(self) -> None:
        """End; no call comes after it. Does nothing when it was never started."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(TICK):
            if self._terminal:
                self._draw()
            elif time.monotonic() - last >= LOG_EVERY:
                last = time.monotonic()
                self._log()
