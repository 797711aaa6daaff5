"""What a run says: tokens, the live line, the report at its end.

Knows: how costs are put in words, and the fields of the JSON lines.
Does not know: how they were measured (engine.records).
"""

from __future__ import annotations

import json
import time
from typing import Any

from kimistream.budget import format_size, peak_rss
from kimistream.cli.status import StatusLine
from kimistream.engine.model import Model
from kimistream.engine.records import Cost, TokenRecord
from kimistream.model.forward import Progress
from kimistream.stream.plan import Plan
from kimistream.text.decoder import StreamingDecoder
from kimistream.text.tokenizer import Tokenizer


class Printer:
    """Shows one run: tokens on stdout as they come, everything else on stderr."""

    def __init__(self, *, quiet: bool, json: bool) -> None:
        self._quiet, self._json = quiet, json
        self.status = StatusLine(self._live, quiet=quiet)
        self._doing = "opening"
        self._model: Model | None = None
        self._decoder: StreamingDecoder | None = None
        self._costs: list[Cost] = []
        self._layer, self._layers = 0, 1
        self._rows_done, self._rows_all = 0, 1
        self._pass_started = self._token_started = time.perf_counter()
        self._bytes_before = 0
        self._max_tokens = 0
        self._stopped = False
        self._in_line = False

    # ---- while it runs

    def note(self, text: str) -> None:
        """One line worth keeping."""
        if not self._quiet:
            self.status.note(f"kimistream: {text}")

    def doing(self, text: str) -> None:
        """What the live line says until the next word, or until the work begins."""
        self._doing = text

    def begin(
        self, model: Model, prompt: int, max_tokens: int, tokenizer: Tokenizer | None, opening: float
    ) -> None:
        """The model is open and the prompt is about to be processed."""
        self._model, self._max_tokens = model, max_tokens
        self._decoder = StreamingDecoder(tokenizer) if tokenizer is not None else None
        self._doing = ""
        if not self._quiet:
            plan = model.plan
            self.status.note(
                f"kimistream: {prompt} prompt tokens, up to {max_tokens} to generate; "
                f"{format_size(plan.budget)} budget ({model.budget_source}), {_pinned(plan)} of the dense "
                f"weights kept in memory; ready after {opening:.1f} s"
            )
        self._pass_started = self._token_started = time.perf_counter()
        self._bytes_before = model.reader.counters().total_bytes

    def progress(self, rows_done: int, rows_all: int) -> Progress:
        """Called before each pass; gives the callback that follows its layers."""
        self._rows_done, self._rows_all = rows_done, rows_all
        self._pass_started = time.perf_counter()
        self._layer = 0
        return self._at_layer

    def _at_layer(self, layer: int, layers: int) -> None:
        self._layer, self._layers = layer, layers

    def _live(self) -> str:
        if self._doing or self._model is None:
            return self._doing
        now = time.perf_counter()
        read = self._model.reader.counters().total_bytes - self._bytes_before
        elapsed = now - self._token_started
        rate = read / elapsed if elapsed > 0 else 0.0
        here = self._layer / (self._layers + 1)
        spent = now - self._pass_started
        left = f", {_clock(spent / here - spent)} left" if here > 0.02 else ""
        what = f"token {len(self._costs) + 1}/{self._max_tokens}"
        if self._rows_all > 1:
            what = f"prompt {self._rows_done}/{self._rows_all}"
        where = "head" if self._layer == self._layers else f"layer {self._layer + 1}/{self._layers}"
        return f"{what}, {where}, {format_size(read)} read, {format_size(rate)}/s, {_clock(elapsed)}{left}"

    def token(self, record: TokenRecord) -> None:
        """A token came: print it at once."""
        self._costs.append(record.cost)
        self._stopped = record.stop
        text = self._decoder.feed([record.id]) if self._decoder is not None else f"{record.id} "
        if self._json:
            self._line(_token_object(record, text if self._decoder is not None else None))
        elif not record.stop:
            self.status.write(text)
            self._in_line = not text.endswith("\n") if text else self._in_line
        self._token_started = time.perf_counter()
        if self._model is not None:
            self._bytes_before = self._model.reader.counters().total_bytes

    def _line(self, fields: dict[str, Any]) -> None:
        self.status.write(json.dumps(fields, ensure_ascii=False) + "\n")

    # ---- at the end

    def end(self, model: Model) -> None:
        """All tokens are out: what the decoder held back, then the report."""
        if self._decoder is not None and not self._json:
            self.status.write(self._decoder.flush())
        if self._json:
            self._line({"summary": summary(self._costs, model.plan.budget)})
        else:
            self.status.write("\n" if self._in_line else "")
        if not self._quiet:
            for line in report_lines(summary(self._costs, model.plan.budget), stopped=self._stopped):
                self.status.note(line)


def _pinned(plan: Plan) -> str:
    whole = plan.pinned_bytes + plan.tape_bytes
    return f"{100 * plan.pinned_bytes / whole:.0f} %" if whole else "none"


def _token_object(record: TokenRecord, text: str | None) -> dict[str, Any]:
    cost = record.cost
    return {
        "id": record.id,
        "text": text,
        "position": record.position,
        "stop": record.stop,
        "seconds": cost.seconds,
        "tape_bytes": cost.tape_bytes,
        "expert_bytes": cost.expert_bytes,
        "other_bytes": cost.other_bytes,
        "tape_wait_seconds": cost.tape_wait,
        "expert_wait_seconds": cost.expert_wait,
        "experts_read": cost.experts_read,
        "experts_reused": cost.experts_reused,
    }


def summary(costs: list[Cost], budget: int) -> dict[str, Any]:
    """The figures of a run. The rates per token leave out the first, which paid for the prompt, if others
    came after it.

    Seconds, bytes; shares are 0 to 1.
    """
    decode = costs[1:] or costs
    steps, whole = sum(decode, Cost()), sum(costs, Cost())
    return {
        "tokens": len(costs),
        "seconds": whole.seconds,
        "first_token_seconds": costs[0].seconds if costs else 0.0,
        "seconds_per_token": steps.seconds / max(len(decode), 1),
        "bytes_per_token": steps.nbytes / max(len(decode), 1),
        "tape_bytes_per_token": steps.tape_bytes / max(len(decode), 1),
        "expert_bytes_per_token": steps.expert_bytes / max(len(decode), 1),
        "disk_bytes_per_second": whole.nbytes / whole.busy_seconds if whole.busy_seconds > 0 else 0.0,
        "disk_wait_share": steps.wait / steps.seconds if steps.seconds > 0 else 0.0,
        "experts_read": whole.experts_read,
        "experts_reused": whole.experts_reused,
        "bytes_read": whole.nbytes,
        "peak_rss_bytes": peak_rss(),
        "budget_bytes": budget,
    }


def report_lines(figures: dict[str, Any], *, stopped: bool) -> list[str]:
    """The report for a person."""
    f = figures
    end = ", ended by the model" if stopped else ""
    return [
        "",
        f"{f['tokens']} tokens in {_clock(f['seconds'])}{end}; the first after "
        f"{f['first_token_seconds']:.2f} s, then {f['seconds_per_token']:.2f} s/token",
        f"{format_size(f['bytes_per_token'])} read per token (tape "
        f"{format_size(f['tape_bytes_per_token'])}, experts {format_size(f['expert_bytes_per_token'])}), "
        f"{format_size(f['bytes_read'])} in all; nothing written",
        f"disk {format_size(f['disk_bytes_per_second'])}/s while reading, "
        f"{100 * f['disk_wait_share']:.0f} % of the time spent waiting for it",
        f"peak memory {format_size(f['peak_rss_bytes'])} of a budget of {format_size(f['budget_bytes'])}",
    ]


def _clock(seconds: float) -> str:
    """Seconds as a person reads them: 4.2 s, 3:05, 2:03:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    clock = f"{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
    return f"{hours}:{clock}" if hours else clock
