"""The words of the live line: which token, which layer, how fast bytes come, how long it will take.

Knows: where a pass is, and the running count of bytes read.
Does not know: how a line is redrawn (status).
"""

from __future__ import annotations

import time

from kimistream.budget import format_size
from kimistream.engine.model import Model
from kimistream.model.forward import Progress


class Live:
    """Follows the work on a prompt and its tokens; `text()` is what the line says now."""

    def __init__(self, doing: str = "opening") -> None:
        self.doing = doing
        """What is being done while no model works; empty while one does."""
        self._model: Model | None = None
        self._count, self._most = 0, 0
        self._layer, self._layers = 0, 1
        self._rows_done, self._rows_all = 0, 1
        self._pass_started = self._token_started = time.perf_counter()
        self._bytes_before = 0

    def begin(self, model: Model, most: int) -> None:
        """A prompt is about to be processed, for an answer of at most `most` tokens (0: not known)."""
        self._model, self._most, self._count = model, most, 0
        self._layer, self._rows_done, self._rows_all = 0, 0, 1
        self.doing = ""
        self._pass_started = time.perf_counter()
        self._next()

    def progress(self, rows_done: int, rows_all: int) -> Progress:
        """Called before each pass; gives the callback that follows its layers."""
        self._rows_done, self._rows_all = rows_done, rows_all
        self._pass_started = time.perf_counter()
        self._layer = 0
        return self._at_layer

    def token(self) -> None:
        """A token came."""
        self._count += 1
        self._next()

    def _next(self) -> None:
        self._token_started = time.perf_counter()
        if self._model is not None:
            self._bytes_before = self._model.reader.counters().total_bytes

    def _at_layer(self, layer: int, layers: int) -> None:
        self._layer, self._layers = layer, layers

    def text(self) -> str:
        """The line; empty when there is nothing to say."""
        if self.doing or self._model is None:
            return self.doing
        now = time.perf_counter()
        read = self._model.reader.counters().total_bytes - self._bytes_before
        elapsed = now - self._token_started
        rate = read / elapsed if elapsed > 0 else 0.0
        here = self._layer / (self._layers + 1)
        spent = now - self._pass_started
        left = f", {clock(spent / here - spent)} left" if here > 0.02 else ""
        what = f"token {self._count + 1}" + (f"/{self._most}" if self._most else "")
        if self._rows_all > 1:
            what = f"prompt {self._rows_done}/{self._rows_all}"
        where = "head" if self._layer == self._layers else f"layer {self._layer + 1}/{self._layers}"
        return f"{what}, {where}, {format_size(read)} read, {format_size(rate)}/s, {clock(elapsed)}{left}"


def clock(seconds: float) -> str:
    """Seconds as a person reads them: 4.2 s, 3:05, 2:03:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    words = f"{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
    return f"{hours}:{words}" if hours else words
