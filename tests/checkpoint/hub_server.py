"""A small hub on 127.0.0.1 for the tests of pull: the metadata calls, and downloads with chosen faults.

Speaks what huggingface_hub and pull ask for: `/api/models/REPO/revision/REV`, `/api/models/REPO/tree/COMMIT`
(in pages), `/REPO/resolve/COMMIT/NAME` with ETag, X-Linked-Etag, X-Linked-Size, X-Repo-Commit, ranges, and a
redirect of large files to a second origin that stands for the CDN. It notes every request, and refuses to
answer more than `limit` of them.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

REPO = "owner/model"
LFS_FROM = 4096
"""Files of at least so many bytes are large files with a sha256; smaller ones have git's blob id only."""


class Fault:
    """What goes wrong with one download request. Times out by itself: nothing waits longer than `stall`."""

    def __init__(
        self,
        kind: str,
        *,
        at: float = 0.5,
        status: int = 503,
        headers: dict[str, str] | None = None,
        stall: float = 5.0,
        times: int = 1,
        name: str | None = None,
        ranged: bool | None = None,
    ) -> None:
        self.kind, self.at, self.status, self.headers = kind, at, status, headers or {}
        self.stall, self.times, self.name, self.ranged = stall, times, name, ranged

    def fits(self, name: str, ranged: bool) -> bool:
        return self.times > 0 and self.name in (None, name) and (self.ranged is None or self.ranged == ranged)


class FakeHub:
    """The files of one repository, its commits, and the faults still to come."""

    def __init__(self, files: dict[str, bytes], limit: int = 2000) -> None:
        self.files = files
        self.commit = hashlib.sha1(b"commit 1").hexdigest()
        self.revisions = {"main": self.commit}
        self.old: dict[str, dict[str, bytes]] = {}
        self.limit = limit
        self.faults: list[Fault] = []
        self.api_faults: deque[tuple[int, dict[str, str]]] = deque()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.token: str | None = None
        self.page = 3
        self.delay = 0.0
        self.chunk = 64 << 10
        self.lock = threading.Lock()
        self.downloading = self.most_downloading = 0
        self.sent = 0
        self.origin = self.cdn = ""

    def at(self, revision: str) -> dict[str, bytes] | None:
        commit = self.revisions.get(revision, revision)
        return self.files if commit == self.commit else self.old.get(commit)

    def new_commit(self, files: dict[str, bytes]) -> None:
        self.old[self.commit] = self.files
        self.files = files
        self.commit = hashlib.sha1(self.commit.encode()).hexdigest()
        self.revisions["main"] = self.commit

    def take_fault(self, name: str, ranged: bool) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.fits(name, ranged):
                    fault.times -= 1
                    return fault
        return None

    def downloads(self, name: str) -> list[str | None]:
        """The Range headers of all requests for a file at the place its bytes come from."""
        return [
            h.get("range")
            for m, path, h in self.requests
            if m == "GET"
            and path.endswith("/" + name)
            and (path.startswith("/cdn/") or len(self.files[name]) < LFS_FROM)
        ]

    @contextmanager
    def serve(self):
        """Run on two ports of 127.0.0.1; gives the address for HF_ENDPOINT."""
        servers = [_Server(("127.0.0.1", 0), self._handler(cdn)) for cdn in (False, True)]
        self.origin, self.cdn = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
        threads = [threading.Thread(target=s.serve_forever, kwargs={"poll_interval": 0.02}) for s in servers]
        for thread in threads:
            thread.daemon = True
            thread.start()
        try:
            yield self.origin
        finally:
            for server in servers:
                server.shutdown()
                server.server_close()

    def _handler(self, cdn: bool) -> Callable[..., BaseHTTPRequestHandler]:
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub, Handler.is_cdn = hub, cdn
        return Handler


def lfs_pointer_size() -> int:
    return 134


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is killed is no news."""


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    is_cdn: bool
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.hub
        headers = {name.lower(): value for name, value in self.headers.items()}
        parts = urlsplit(self.path)
        with hub.lock:
            hub.requests.append((self.command, parts.path, headers))
            if len(hub.requests) > hub.limit:
                return self._send(500, b"too many requests for one test")
        try:
            self._answer(parts.path, parse_qs(parts.query), headers)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _answer(self, path: str, query: dict[str, list[str]], headers: dict[str, str]) -> None:
        hub = self.hub
        if self.is_cdn:
            return self._download(unquote(path.split("/", 3)[3]), path.split("/")[2], headers)
        if hub.token is not None and headers.get("authorization") != f"Bearer {hub.token}":
            return self._send(401, b'{"error":"Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        if path.startswith("/api/") and hub.api_faults:
            status, extra = hub.api_faults.popleft()
            return self._send(status, b"{}", extra)
        base = f"/api/models/{REPO}"
        if path.startswith(f"{base}/revision/"):
            revision = unquote(path.removeprefix(f"{base}/revision/"))
            if hub.at(revision) is None:
                return self._send(404, b'{"error":"Invalid rev id"}', {"X-Error-Code": "RevisionNotFound"})
            commit = hub.revisions.get(revision, revision)
            return self._json({"id": REPO, "modelId": REPO, "sha": commit, "siblings": [], "tags": []})
        if path.startswith(f"{base}/tree/"):
            return self._tree(path.removeprefix(f"{base}/tree/"), int(query.get("cursor", ["0"])[0]))
        if path.startswith(f"/{REPO}/resolve/"):
            commit, name = path.removeprefix(f"/{REPO}/resolve/").split("/", 1)
            return self._resolve(commit, unquote(name), headers)
        return self._send(404, b'{"error":"Repository not found"}', {"X-Error-Code": "RepoNotFound"})

    def _tree(self, revision: str, cursor: int) -> None:
        files = self.hub.at(unquote(revision))
        if files is None:
            return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        names = sorted(files)
        entries = []
        for name in names[cursor : cursor + self.hub.page]:
            data = files[name]
            entry = {"type": "file", "path": name, "size": len(data), "oid": blob_id(data)}
            if len(data) >= LFS_FROM:
                sha256 = hashlib.sha256(data).hexdigest()
                entry |= {"lfs": {"oid": sha256, "size": len(data), "pointerSize": lfs_pointer_size()}}
            entries.append(entry)
        following = cursor + self.hub.page
        link = {}
        if following < len(names):
            url = f"{self.hub.origin}/api/models/{REPO}/tree/{revision}?recursive=true&cursor={following}"
            link = {"Link": f'<{url}>; rel="next"'}
        return self._json(entries, link)

    def _resolve(self, commit: str, name: str, headers: dict[str, str]) -> None:
        files = self.hub.at(commit)
        if files is None or name not in files:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        data = files[name]
        etag = hashlib.sha256(data).hexdigest() if len(data) >= LFS_FROM else blob_id(data)
        about = {"X-Repo-Commit": commit, "X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data))}
        if len(data) < LFS_FROM:
            return self._download(name, commit, headers, about | {"ETag": f'"{etag}"'})
        location = f"{self.hub.cdn}/cdn/{commit}/{name}?signature=secret"
        return self._send(302, b"", about | {"Location": location})

    def _download(
        self, name: str, commit: str, headers: dict[str, str], about: dict[str, str] | None = None
    ) -> None:
        hub = self.hub
        with hub.lock:
            hub.downloading += 1
            hub.most_downloading = max(hub.most_downloading, hub.downloading)
        try:
            self._download_with_faults(name, commit, headers, about or {})
        finally:
            with hub.lock:
                hub.downloading -= 1

    def _download_with_faults(
        self, name: str, commit: str, headers: dict[str, str], about: dict[str, str]
    ) -> None:
        files = self.hub.at(commit)
        data = files[name]
        start = 0
        if "range" in headers:
            start = int(headers["range"].removeprefix("bytes=").removesuffix("-"))
        fault = self.hub.take_fault(name, start > 0)
        kind = fault.kind if fault else ""
        if kind == "status":
            return self._send(fault.status, b"{}", fault.headers)
        if kind == "wrong bytes":
            at = int(fault.at * (len(data) - 1))
            data = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        if kind == "longer":
            data += b"more"
        if kind == "shorter":
            data = data[:-7]
        status = 206 if start else 200
        if kind == "range ignored":
            start, status = 0, 200
        if kind == "range refused" or start > len(data):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        body = data[start:]
        if kind == "wrong start":
            body = data[start - 1 :]
            start -= 1
        sent = {"Content-Length": str(len(body)), "Accept-Ranges": "bytes"} | about
        if status == 206:
            sent["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if kind in ("longer chunked", "shorter chunked"):
            body = body + b"tail" if kind == "longer chunked" else body[:-5]
            del sent["Content-Length"]
            sent["Connection"] = "close"
            self.close_connection = True
        self._head(status, sent)
        if self.command == "HEAD":
            return None
        end = len(body)
        if kind in ("drop", "stall", "drip"):
            end = int(fault.at * len(body))
        self._write(body[:end])
        if kind == "drop":
            self.close_connection = True
            self.connection.shutdown(2)
        elif kind == "stall":
            time.sleep(fault.stall)
            self.close_connection = True
        elif kind == "drip":
            for i in range(end, min(len(body), end + int(fault.stall / 0.05))):
                self._write(body[i : i + 1])
                time.sleep(0.05)
            self.close_connection = True
        return None

    def _write(self, data: bytes) -> None:
        for at in range(0, len(data), self.hub.chunk):
            if self.hub.delay:
                time.sleep(self.hub.delay)
            piece = data[at : at + self.hub.chunk]
            self.wfile.write(piece)
            with self.hub.lock:
                self.hub.sent += len(piece)

    def _json(self, value: object, extra: dict[str, str] | None = None) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"} | (extra or {}))

    def _send(self, status: int, body: bytes, extra: dict[str, str] | None = None) -> None:
        self._head(status, {"Content-Length": str(len(body))} | (extra or {}))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
