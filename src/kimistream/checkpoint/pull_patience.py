"""How long a download goes on trying: the limits, the waits, and what kind of failure an attempt met.

Knows: which HTTP answers mean "later", "no" or "not like this"; `Retry-After`; growing waits.
Does not know: what is being asked for.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum

from kimistream.errors import DownloadError, Interrupted


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits of trying. Seconds, bytes, counts.

    A network that is away for half an hour in the middle of a long download is waited for; a hub that
    cannot be reached at the start, with someone watching, is not.
    """

    stall_seconds: float = 30.0
    """Nothing arrives for so long: the connection is given up and a new one made."""
    slow_bytes: int = 60 << 10
    slow_seconds: float = 60.0
    """Fewer than `slow_bytes` in `slow_seconds` count as a stall too."""
    attempts: int = 36
    """Attempts in a row that get nothing done (with the waits below: about half an hour)."""
    first_attempts: int = 6
    """The same for the questions before the download begins."""
    refusals: int = 3
    """Answers that will hardly change: refused, wrong length, wrong bytes, per file."""
    wait_first: float = 1.0
    wait_most: float = 60.0
    wait_told_most: float = 600.0
    """The longest `Retry-After` that is obeyed."""
    progress_bytes: int = 1 << 20
    """An attempt that brought at least this (or a hundredth of the file) was not in vain."""


class Kind(Enum):
    """What an attempt's failure says about the next one."""

    LATER = "later"
    """The network, or a server that is busy."""
    REFUSED = "refused"
    """An answer that asking again will hardly change."""


class Failed(Exception):
    """One attempt failed. `wait`: seconds the server asked for; `restart`: begin the file from its start."""

    def __init__(
        self, why: str, kind: Kind = Kind.LATER, *, wait: float | None = None, restart: bool = False
    ) -> None:
        super().__init__(why)
        self.why = why
        self.kind = kind
        self.wait = wait
        self.restart = restart


_LATER = frozenset({408, 425, 429})


def judge(status: int, headers: Mapping[str, str]) -> Failed | None:
    """The failure that an HTTP status stands for; None for one that brings data."""
    if status in (200, 206):
        return None
    if status in _LATER or status >= 500:
        words = {429: "too many requests", 503: "service unavailable"}.get(status, "busy")
        return Failed(f"HTTP {status}, {words}", wait=told_wait(headers))
    if status == 416:
        return Failed("HTTP 416, range refused", Kind.REFUSED, restart=True)
    words = {401: "not authorized", 403: "forbidden", 404: "not found"}.get(status, "refused")
    return Failed(f"HTTP {status}, {words}", Kind.REFUSED)


def told_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by `Retry-After` (seconds or a date) or the hub's `RateLimit` (`"api";r=0;t=55`)."""
    value = headers.get("retry-after", "").strip()
    if value.isdigit():
        return float(value)
    if value:
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        except (TypeError, ValueError):
            pass
    limit = re.search(r"r\s*=\s*0\s*;\s*t\s*=\s*(\d+)", headers.get("ratelimit", ""))
    return float(limit[1]) if limit else None


class Gate:
    """A door for all workers: when a server says "in 30 seconds", none of them asks before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opens = 0.0

    def shut(self, seconds: float) -> None:
        with self._lock:
            self._opens = max(self._opens, time.monotonic() + seconds)

    def wait(self, stop: threading.Event) -> None:
        """Return when the door is open. Raises Interrupted once `stop` is set."""
        while (left := self._opens - time.monotonic()) > 0:
            pause(min(left, 1.0), stop)


def pause(seconds: float, stop: threading.Event) -> None:
    """Sleep; raises Interrupted as soon as `stop` is set."""
    if stop.wait(max(0.0, seconds)):
        raise Interrupted("stopped")


class Patience:
    """Counts the failures of one piece of work and waits between its attempts."""

    def __init__(
        self, policy: Policy, gate: Gate, stop: threading.Event, attempts: int | None = None
    ) -> None:
        self._policy, self._gate, self._stop = policy, gate, stop
        self._attempts = policy.attempts if attempts is None else attempts
        self.failures = 0
        self.refusals = 0

    def progressed(self) -> None:
        """Something was done: the count of failures begins anew."""
        self.failures = 0

    def after(self, failed: Failed, what: str, say: Callable[[str], None] | None = None) -> None:
        """Wait as long as this failure asks for; raises DownloadError when it was the last one allowed."""
        policy = self._policy
        if failed.kind is Kind.REFUSED:
            self.refusals += 1
            if self.refusals >= policy.refusals:
                raise DownloadError(f"{what}: {failed.why} ({self.refusals} times)", _REMEDY)
        else:
            self.failures += 1
            if self.failures >= self._attempts:
                raise DownloadError(
                    f"{what}: {failed.why} ({self.failures} attempts in a row)",
                    "Check the network; then run the same command again, it goes on from here.",
                )
        tried = max(self.failures, self.refusals)
        wait = min(policy.wait_first * 2 ** (tried - 1), policy.wait_most) * random.uniform(0.8, 1.2)
        if failed.wait is not None:
            wait = min(max(failed.wait, 0.0), policy.wait_told_most) + random.uniform(0.0, 0.1)
            self._gate.shut(wait)
        if say is not None:
            say(f"{failed.why}; again in {wait:.0f} s" if wait >= 1 else f"{failed.why}; again")
        pause(wait, self._stop)
        self._gate.wait(self._stop)


_REMEDY = "Run the same command again later, it goes on from here; or ask another endpoint with HF_ENDPOINT."
