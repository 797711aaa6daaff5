"""Fetching one file: attempt after attempt, each going on where the last one ended.

Knows: a partial file's length is what there is of it; when an attempt has stalled; when to give up.
Does not know: where the bytes come from (pull_source), or whether they are right (pull checks the digest).

The partial file only ever grows at its end, by bytes that were received in order for one content (its name
carries the content's digest), so whatever kills the process leaves a prefix to go on from.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kimistream.budget import format_size
from kimistream.checkpoint.pull_hub import RemoteFile
from kimistream.checkpoint.pull_patience import Failed, Gate, Kind, Patience, Policy
from kimistream.checkpoint.pull_source import Body, Source
from kimistream.errors import Interrupted, OutputError


class Fetcher:
    """Fetches files of one source into partial files."""

    def __init__(
        self,
        source: Source,
        policy: Policy,
        gate: Gate,
        stop: threading.Event,
        *,
        advance: Callable[[str, int], None],
        say: Callable[[str, str], None],
    ) -> None:
        """advance(name, bytes): bytes came (negative: were thrown away); say(name, text): why it waits."""
        self._source, self._policy, self._gate, self._stop = source, policy, gate, stop
        self._advance, self._say = advance, say

    def fetch(self, file: RemoteFile, partial: Path, patience: Patience) -> None:
        """Complete `partial` to the file's size. Raises DownloadError, OutputError or Interrupted."""
        worth = max(self._policy.progress_bytes, file.size // 100)
        mark = have = self._length(partial, file)
        plain = False
        while True:
            self._gate.wait(self._stop)
            try:
                self._attempt(file, partial, plain=plain)
                return
            except Failed as failed:
                if failed.restart:
                    self._discard(partial, file)
                have, mark = self._length(partial, file), min(mark, self._length(partial, file))
                if have - mark >= worth:
                    patience.progressed()
                    mark = have
                elif patience.failures >= 1:
                    plain = True  # twice in vain: not by the fast way again
                patience.after(
                    failed,
                    f"{file.name} ({format_size(have)} of {format_size(file.size)} there)",
                    lambda text: self._say(file.name, text),
                )
                self._say(file.name, "fetching")

    def _attempt(self, file: RemoteFile, partial: Path, *, plain: bool) -> None:
        have = self._length(partial, file)
        handle = self._open(partial)
        try:
            if have == file.size:
                return
            with self._source.open(file, have, plain=plain) as body:
                have = self._receive(file, handle, body, have, partial)
        finally:
            os.close(handle)
        if have < file.size:
            raise Failed(f"the connection ended after {have:,} of {file.size:,} bytes")

    def _receive(self, file: RemoteFile, handle: int, body: Body, have: int, partial: Path) -> int:
        policy = self._policy
        skip = have - body.start  # a server that refuses ranges sends again what is already here
        since, arrived = time.monotonic(), 0
        for chunk in body.chunks:
            if self._stop.is_set():
                raise Interrupted("stopped")
            arrived += len(chunk)
            now = time.monotonic()
            if now - since > policy.slow_seconds:
                if arrived < policy.slow_bytes:
                    raise Failed(f"only {format_size(arrived)} in {now - since:.0f} s")
                since, arrived = now, 0
            view = memoryview(chunk)[min(skip, len(chunk)) :]
            skip -= len(chunk) - len(view)
            if have + len(view) > file.size:
                raise Failed(
                    f"wrong length: more than the {file.size:,} bytes of the hub's list were sent",
                    Kind.REFUSED,
                    restart=True,
                )
            self._write(handle, view, partial)
            have += len(view)
            self._advance(file.name, len(view))
        return have

    def _write(self, handle: int, view: memoryview, partial: Path) -> None:
        while view:
            try:
                view = view[os.write(handle, view) :]
            except OSError as error:
                raise disk_error(error, partial) from None

    def _open(self, partial: Path) -> int:
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            return os.open(
                partial, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o644
            )
        except OSError as error:
            raise disk_error(error, partial) from None

    def _length(self, partial: Path, file: RemoteFile) -> int:
        """Bytes there are; one that is too long to be a part is begun anew."""
        try:
            size = partial.stat().st_size
        except FileNotFoundError:
            return 0
        if size > file.size:
            self._discard(partial, file)
            return 0
        return size

    def _discard(self, partial: Path, file: RemoteFile) -> None:
        try:
            size = partial.stat().st_size
            partial.unlink()
        except FileNotFoundError:
            return
        self._advance(file.name, -min(size, file.size))


def disk_error(error: OSError, path: Path) -> OutputError:
    """An error of writing, in words; a full disk with what is free."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        try:
            free = f", {format_size(shutil.disk_usage(path.parent).free)} are free"
        except OSError:
            free = ""
        return OutputError(
            f"the disk of {path.parent} is full{free}",
            "Make room and run the same command again: it goes on from here.",
        )
    return OutputError(
        f"{path} cannot be written: {error.strerror}", "Check that the directory may be written to."
    )
