"""What a run says: tokens, the live line, the report at its end.

Knows: how costs are put in words, and the fields of the JSON lines.
Does not know: how they were measured (engine.records).
"""

from __future__ import annotations

import json
from typing import Any

from kimistream.budget import format_size, peak_rss
from kimistream.cli.live import Live, clock
from kimistream.cli.status import StatusLine
from kimistream.engine.logprobs import TokenLogprobs
from kimistream.engine.model import Model
from kimistream.engine.records import Cost, TokenRecord
from kimistream.stream.plan import Plan


class Printer:
    """Shows one run: tokens on stdout as they come, everything else on stderr."""

    def __init__(self, *, quiet: bool, json: bool) -> None:
        self._quiet, self._json = quiet, json
        self.live = Live()
        self.status = StatusLine(self.live.text, quiet=quiet)
        self.progress = self.live.progress
        self._costs: list[Cost] = []
        self._in_line = False

    # ---- while it runs

    def note(self, text: str) -> None:
        """One line worth keeping."""
        if not self._quiet:
            self.status.note(f"kimistream: {text}")

    def doing(self, text: str) -> None:
        """What the live line says until the next word, or until the work begins."""
        self.live.doing = text

    def begin(self, model: Model, prompt: int, kept: int, max_tokens: int, how: str, opening: float) -> None:
        """The model is open and the prompt is about to be processed.

        kept: its tokens that a session saved from being computed; how: the choice of tokens in words.
        """
        self.live.begin(model, max_tokens)
        plan = model.plan
        saved = f" ({kept} of them from the session)" if kept else ""
        self.note(
            f"{prompt} prompt tokens{saved}, up to {max_tokens} to generate, {how}; "
            f"{format_size(plan.budget)} budget ({model.budget_source}), {_pinned(plan)} of the dense "
            f"weights kept in memory; ready after {opening:.1f} s"
        )

    def token(self, record: TokenRecord, text: str | None, logprobs: TokenLogprobs | None = None) -> None:
        """A token came, and with it text (None without a tokenizer): print it at once."""
        self._costs.append(record.cost)
        self.live.token()
        if self._json:
            self._line(_token_object(record, text, logprobs))
            return
        if text is None:
            text = "" if record.stop else f"{record.id} "
        self.status.write(text)
        self._in_line = not text.endswith("\n") if text else self._in_line

    def _line(self, fields: dict[str, Any]) -> None:
        self.status.write(json.dumps(fields, ensure_ascii=False) + "\n")

    # ---- at the end

    def end(self, model: Model, **more: Any) -> None:
        """All tokens are out: the report. more: further fields of the summary."""
        figures = summary(self._costs, model.plan.budget) | more
        if self._json:
            self._line({"summary": figures})
        else:
            self.status.write("\n" if self._in_line else "")
        if not self._quiet:
            for line in report_lines(figures):
                self.status.note(line)


def _pinned(plan: Plan) -> str:
    whole = plan.pinned_bytes + plan.tape_bytes
    return f"{100 * plan.pinned_bytes / whole:.0f} %" if whole else "none"


def _token_object(record: TokenRecord, text: str | None, logprobs: TokenLogprobs | None) -> dict[str, Any]:
    cost = record.cost
    fields: dict[str, Any] = {
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
    if logprobs is not None:
        fields["logprob"] = logprobs.logprob
        fields["rank"] = logprobs.rank
        fields["top_logprobs"] = [{"id": i, "logprob": value} for i, value in logprobs.top]
    return fields


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


def report_lines(figures: dict[str, Any]) -> list[str]:
    """The report for a person."""
    f = figures
    end = ""
    if f.get("finish_reason") == "stop":
        end = f", ended by {f['stop_string']!r}" if f.get("stop_string") else ", ended by the model"
    return [
        "",
        f"{f['tokens']} tokens in {clock(f['seconds'])}{end}; the first after "
        f"{f['first_token_seconds']:.2f} s, then {f['seconds_per_token']:.2f} s/token",
        f"{format_size(f['bytes_per_token'])} read per token (tape "
        f"{format_size(f['tape_bytes_per_token'])}, experts {format_size(f['expert_bytes_per_token'])}), "
        f"{format_size(f['bytes_read'])} in all; nothing written",
        f"disk {format_size(f['disk_bytes_per_second'])}/s while reading, "
        f"{100 * f['disk_wait_share']:.0f} % of the time spent waiting for it",
        f"peak memory {format_size(f['peak_rss_bytes'])} of a budget of {format_size(f['budget_bytes'])}",
    ]
