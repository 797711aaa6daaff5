"""Where the bytes of a file come from, beginning at any of them: plain HTTPS, or the hub's fast transfer.

Knows: ranges and what servers answer to them; hf_xet's ordered streams; how to end a stream that hangs.
Does not know: where the bytes go, or how often it is tried.

Both give a `Body` that begins at the byte asked for, or earlier (a server that refuses ranges sends all of
it). Why not `hf_hub_download`: it writes to a file that it deletes when it is stopped, so that a kill
costs up to 17 GB a file; it does not compare digests; and it gives up after five failures.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from kimistream.checkpoint.pull_hub import Hub, RemoteFile
from kimistream.checkpoint.pull_patience import Failed, Kind, Policy, judge
from kimistream.errors import KimistreamError

XET_FAILURES = 3
"""So many failures of the fast transfer, and the rest goes over plain HTTPS."""


@dataclass(slots=True)
class Body:
    """Bytes of a file from `start` on, in order."""

    start: int
    chunks: Iterator[bytes]


class Source:
    """Opens files of one commit. Used by several threads at once."""

    def __init__(
        self, hub: Hub, commit: str, policy: Policy, note: Callable[[str], None], *, fast: bool = True
    ) -> None:
        self._hub, self._commit, self._policy, self._note = hub, commit, policy, note
        self._lock = threading.Lock()
        self._group: Any = None
        self._session: Any = None
        self._xet_left = XET_FAILURES if fast and _xet_wanted() else 0
        self._watches: set[_Watch] = set()
        self._watcher: threading.Thread | None = None

    @contextmanager
    def open(self, file: RemoteFile, start: int, *, plain: bool = False) -> Iterator[Body]:
        """A body that begins at `start` or before. Raises Failed, also while the body is read."""
        fast = not plain and self._xet_left > 0 and file.xet_hash is not None
        try:
            with self._open_xet(file, start) if fast else self._open_http(file, start) as body:
                yield body
        except (KimistreamError, Failed, GeneratorExit):
            raise
        except Exception as error:
            if fast:
                self._xet_failed(error)
            raise Failed(self._hub.describe(error)) from None

    def close(self) -> None:
        """Let go of the fast transfer's threads."""
        with self._lock:
            group, self._group = self._group, None
        if group is not None:
            with suppress(Exception):
                group.abort()

    # ---------------------------------------------------------------- plain HTTPS

    @contextmanager
    def _open_http(self, file: RemoteFile, start: int) -> Iterator[Body]:
        from huggingface_hub import get_session

        headers = self._hub.headers() | {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        url = self._hub.url(file, self._commit)
        with get_session().stream(
            "GET", url, headers=headers, timeout=self._policy.stall_seconds, follow_redirects=True
        ) as response:
            failed = judge(response.status_code, response.headers)
            if failed is not None:
                raise failed
            begins = _check_answer(response.status_code, response.headers, start, file.size)
            yield Body(begins, response.iter_raw())

    # ---------------------------------------------------------------- the fast transfer

    @contextmanager
    def _open_xet(self, file: RemoteFile, start: int) -> Iterator[Body]:
        from hf_xet import XetFileInfo

        stream = self._xet_group().download_stream(XetFileInfo(file.xet_hash, file.size), start=start)
        with self._watched(stream.cancel) as watch:
            yield Body(start, _ticking(stream, watch))
            if watch.fired:
                raise Failed(f"nothing arrived for {self._policy.stall_seconds:.0f} s")

    def _xet_group(self) -> Any:
        with self._lock:
            if self._group is None:
                from hf_xet import XetSession

                headers = self._hub.headers()
                plain = {name: value for name, value in headers.items() if name.lower() != "authorization"}
                route = f"{self._hub.endpoint}/api/models/{self._hub.repo}/xet-read-token/{self._commit}"
                self._session = XetSession()
                self._group = self._session.new_download_stream_group(
                    token_refresh_url=route, token_refresh_headers=headers, custom_headers=plain
                )
            return self._group

    def _xet_failed(self, error: Exception) -> None:
        with self._lock:
            self._group = None  # the next attempt makes a new connection
            self._xet_left -= 1
            last = self._xet_left == 0
        if last:
            self._note(
                f"the fast transfer (hf_xet) failed {XET_FAILURES} times ({self._hub.describe(error)}): "
                "going on over plain HTTPS"
            )

    @contextmanager
    def _watched(self, cancel: Callable[[], None]) -> Iterator[_Watch]:
        watch = _Watch(cancel, self._policy.stall_seconds)
        with self._lock:
            self._watches.add(watch)
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="pull watch", daemon=True)
                self._watcher.start()
        try:
            yield watch
        finally:
            with self._lock:
                self._watches.discard(watch)

    def _watch(self) -> None:
        while True:
            time.sleep(min(1.0, self._policy.stall_seconds / 4))
            with self._lock:
                watches = list(self._watches)
            for watch in watches:
                watch.check()


class _Watch:
    """Ends a stream that does not move: its iterator then ends early."""

    def __init__(self, cancel: Callable[[], None], seconds: float) -> None:
        self._cancel, self._seconds = cancel, seconds
        self.moved = time.monotonic()
        self.fired = False

    def check(self) -> None:
        if not self.fired and time.monotonic() - self.moved > self._seconds:
            self.fired = True
            with suppress(Exception):
                self._cancel()


def _ticking(stream: Iterator[bytes], watch: _Watch) -> Iterator[bytes]:
    for chunk in stream:
        watch.moved = time.monotonic()
        yield chunk


def _xet_wanted() -> bool:
    if os.environ.get("HF_HUB_DISABLE_XET", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    try:
        import hf_xet
    except ImportError:
        return False
    return hasattr(hf_xet, "XetSession") and hasattr(hf_xet.XetSession, "new_download_stream_group")


_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


def _check_answer(status: int, headers: Mapping[str, str], start: int, size: int) -> int:
    """The byte at which an answer's body begins. Raises Failed for one that cannot be this file's."""
    if headers.get("content-encoding", "identity") not in ("identity", ""):
        raise Failed(
            f"the server sends {headers['content-encoding']} although it was told not to", Kind.REFUSED
        )
    begins = 0
    if status == 206:
        parts = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
        if parts is None or int(parts[1]) > start or int(parts[1]) != start:
            raise Failed(
                f"the server answers bytes={start}- with {headers.get('content-range', 'no range')!r}",
                Kind.REFUSED,
                restart=True,
            )
        begins = start
        if parts[3] != "*" and int(parts[3]) != size:
            raise Failed(_wrong_length(int(parts[3]), size), Kind.REFUSED, restart=True)
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) != size - begins:
        raise Failed(_wrong_length(int(length) + begins, size), Kind.REFUSED, restart=True)
    return begins


def _wrong_length(offered: int, size: int) -> str:
    return f"wrong length: the server has {offered:,} bytes, the hub's list says {size:,}"
