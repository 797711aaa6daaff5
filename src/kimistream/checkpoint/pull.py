"""`pull`: from a repository's name to a directory in which every byte is known to be right.

Knows: the order of things: commit, list, choice, room, bytes, digests, manifest.
Does not know: how it is shown (cli), or how each of these is done (pull_*).

A file gets its name in the directory only when its digest, read back from the disk, is the hub's. One that
is wrong is deleted and fetched again from its first byte, at most `Policy.refusals` times.
"""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kimistream.budget import format_size
from kimistream.checkpoint.digest import Digests, digest_file, marks_of
from kimistream.checkpoint.fetch import K3
from kimistream.checkpoint.header import read_header
from kimistream.checkpoint.index import INDEX_NAME
from kimistream.checkpoint.manifest import write_manifest
from kimistream.checkpoint.progress import Progress
from kimistream.checkpoint.pull_fetch import Fetcher, disk_error
from kimistream.checkpoint.pull_hub import Hub, RemoteFile
from kimistream.checkpoint.pull_patience import Failed, Gate, Kind, Patience, Policy
from kimistream.checkpoint.pull_select import choose, needs_index
from kimistream.checkpoint.pull_source import Source
from kimistream.checkpoint.pull_state import PullState
from kimistream.checkpoint.whole import sync_directory
from kimistream.errors import DownloadError, Interrupted, OutputError, ShardError, UsageError

WORKERS = 8
MAX_WORKERS = 64
_ROOM_TO_SPARE = 64 << 20
_CHECKERS = 2
"""Threads beyond the workers: a file that is being hashed does not keep a connection from working."""
_GO_ON = "Run the same command again: it goes on from here."


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to pull. `layers`: first and last, from 0. `files`: exactly these, checked even if known right."""

    repo: str = K3
    revision: str | None = None
    only_text: bool = False
    layers: tuple[int, int] | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull did. `chosen`: files that are in the directory and right; `fetched`: those fetched now."""

    commit: str
    chosen: int
    nbytes: int
    fetched: tuple[str, ...]
    complete: bool
    """Every file of the repository is there."""


class Pull:
    """One pull into one directory. Call `run` once; `progress` may be looked at from another thread."""

    def __init__(
        self,
        directory: str | Path,
        wanted: Wanted | None = None,
        *,
        workers: int = WORKERS,
        endpoint: str | None = None,
        token: str | None = None,
        fast: bool = True,
        policy: Policy | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        """note: receives single lines worth telling. fast: use hf_xet where it and the file allow it."""
        if not 1 <= workers <= MAX_WORKERS:
            raise UsageError(f"--workers {workers}: must be 1 to {MAX_WORKERS}", "For example --workers 8.")
        self.directory = Path(directory)
        self.wanted = wanted or Wanted()
        self.progress = Progress()
        self._workers, self._fast = workers, fast
        self._policy = policy or Policy()
        self._note = note or (lambda _: None)
        self._stop = threading.Event()
        self._gate = Gate()
        self._connections = threading.BoundedSemaphore(workers)
        self._state = PullState(self.directory)
        self._lock = threading.Lock()
        self._queue: deque[RemoteFile] = deque()
        self._failures: list[DownloadError] = []
        self._fatal: BaseException | None = None
        self._fetched: list[str] = []
        if self.directory.exists() and not self.directory.is_dir():
            raise UsageError(
                f"{self.directory} is not a directory", "Name a directory; it is made if need be."
            )
        self._hub = Hub(self.wanted.repo, endpoint=endpoint, token=token, note=self._note)

    def run(self) -> Pulled:
        """Do it. Raises DownloadError, OutputError, UsageError, CheckpointError, Interrupted."""
        self._state.open()
        try:
            return self._run()
        finally:
            self._stop.set()
            self._state.close()

    def stop(self) -> None:
        """End a `run` in another thread soon; it raises Interrupted. What has arrived stays."""
        self._stop.set()

    # ---------------------------------------------------------------- before the bytes

    def _run(self) -> Pulled:
        wanted, state = self.wanted, self._state
        patience = Patience(self._policy, self._gate, self._stop, self._policy.first_attempts)
        commit = state.pinned_commit(wanted.repo, wanted.revision)
        if commit is None:
            commit = self._hub.commit_of(wanted.revision or "main", patience)
        files = self._hub.files_of(commit, patience)
        if not files:
            raise DownloadError(
                f"{wanted.repo} at {commit} holds no files", "Check the name of the repository."
            )
        self._refuse_another_model(files)
        state.start(wanted.repo, wanted.revision or "main", commit)
        source = Source(self._hub, commit, self._policy, self._note, fast=self._fast)
        fetcher = Fetcher(
            source,
            self._policy,
            self._gate,
            self._stop,
            advance=self.progress.advance,
            say=self.progress.phase,
        )
        try:
            chosen = self._choose(files, fetcher)
            self._check_room(chosen)
            self._all(chosen, fetcher)
        finally:
            source.close()
        write_manifest(self.directory, state.manifest(files))
        if len(chosen) == len(files):
            state.drop_stale_partials(files)
        return Pulled(
            commit,
            len(chosen),
            sum(file.size for file in chosen),
            tuple(self._fetched),
            all(state.is_right(file) for file in files),
        )

    def _refuse_another_model(self, files: Sequence[RemoteFile]) -> None:
        """A directory that was not pulled before may hold this repository's files, but not another's."""
        config = next((file for file in files if file.name == "config.json"), None)
        path = self.directory / "config.json"
        if self._state.pin is not None or config is None or not path.is_file():
            return
        digests = digest_file(path, blob=True)
        if not config.matches(digests.sha256, digests.blob):
            raise UsageError(
                f"{path} ({digests.size:,} bytes) is not the config.json of {self.wanted.repo} "
                f"({config.size:,} bytes): the directory seems to hold another model",
                "Name another directory; or delete that file if the directory may be overwritten.",
            )

    def _choose(self, files: list[RemoteFile], fetcher: Fetcher) -> list[RemoteFile]:
        wanted = self.wanted
        index = None
        if not wanted.files and needs_index(wanted.only_text, wanted.layers):
            entry = next((file for file in files if file.name == INDEX_NAME), None)
            if entry is not None:
                self.progress.expect(1, entry.size)
                if not self._state.is_right(entry):
                    self._one(entry, fetcher)
                self.progress.clear()
                index = self.directory / INDEX_NAME
        return choose(files, index, only_text=wanted.only_text, layers=wanted.layers, names=wanted.files)

    def _check_room(self, chosen: Sequence[RemoteFile]) -> None:
        """Refuse before the first byte when the disk cannot hold the last one."""
        needed = 0
        for file in chosen:
            have = 0
            for path in (self.directory / file.name, self._state.partial(file)):
                if path.is_file():
                    have = max(have, min(path.stat().st_size, file.size))
            needed += file.size - have
        free = shutil.disk_usage(self.directory).free
        if needed and needed + _ROOM_TO_SPARE > free:
            whole = sum(file.size for file in chosen)
            raise OutputError(
                f"{self.directory} has room for {format_size(free)}; needed: "
                f"{format_size(needed + _ROOM_TO_SPARE)} (of {format_size(whole)} in all, "
                f"{format_size(whole - needed)} are there)",
                "Make room or name a directory on another disk; `--only text` leaves out the image tower, "
                "`--layers A-B` all other layers.",
            )

    # ---------------------------------------------------------------- all files

    def _all(self, chosen: Sequence[RemoteFile], fetcher: Fetcher) -> None:
        again = set(self.wanted.files)
        self.progress.expect(len(chosen), sum(file.size for file in chosen))
        todo = []
        for file in chosen:
            if file.name not in again and self._state.is_right(file):
                self.progress.already(file.size)
            else:
                todo.append(file)
        self._queue.extend(todo)
        threads = [
            threading.Thread(target=self._work, args=(fetcher,), name=f"pull {i}", daemon=True)
            for i in range(min(self._workers + _CHECKERS, len(todo)))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        except BaseException:
            self._stop.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join(1.0)
            raise
        if self._fatal is not None:
            raise self._fatal
        if self._stop.is_set() and not self._failures:
            raise Interrupted("stopped")
        if self._failures:
            first, more = self._failures[0], len(self._failures) - 1
            others = f"\n(and {more} other files could not be fetched)" if more else ""
            raise DownloadError(first.what + others, first.remedy or _GO_ON)

    def _work(self, fetcher: Fetcher) -> None:
        while not self._stop.is_set():
            with self._lock:
                if not self._queue:
                    return
                file = self._queue.popleft()
            try:
                self._one(file, fetcher)
            except Interrupted:
                return
            except DownloadError as error:
                with self._lock:
                    self._failures.append(error)
                    hopeless = len(self._failures) >= max(3, self._workers)
                if hopeless:
                    self._stop.set()
                    return
            except BaseException as error:
                with self._lock:
                    self._fatal = self._fatal or error
                self._stop.set()
                return

    # ---------------------------------------------------------------- one file

    def _one(self, file: RemoteFile, fetcher: Fetcher) -> None:
        """Bring one file into the directory and see that it is right."""
        path, partial = self.directory / file.name, self._state.partial(file)
        patience = Patience(self._policy, self._gate, self._stop)
        done = False
        try:
            if path.is_symlink() or path.is_file():
                done = self._adopt(file, path, partial)
            while not done:
                have = partial.stat().st_size if partial.exists() else 0
                with self._connections:
                    self.progress.begin(file.name, file.size, min(have, file.size), "fetching")
                    fetcher.fetch(file, partial, patience)
                digests = self._digests(file, partial)
                if file.matches(digests.sha256, digests.blob):
                    self._keep(file, partial, path, digests)
                    done = True
                else:
                    self._begin_again(file, partial, patience, digests)
        except OSError as error:
            raise disk_error(error, path) from None
        finally:
            self.progress.end(file.name, whole=done)

    def _adopt(self, file: RemoteFile, path: Path, partial: Path) -> bool:
        """What is already there under the file's name: right, the beginning of it, or wrong."""
        size = path.stat().st_size if path.exists() else -1
        if size == file.size:
            digests = self._digests(file, path, counted=True)
            if file.matches(digests.sha256, digests.blob):
                self._state.found_right(file, digests)
                return True
        self._state.forget(file)
        if 0 < size < file.size and not path.is_symlink() and not partial.exists():
            partial.parent.mkdir(parents=True, exist_ok=True)
            path.replace(partial)
            self._note(f"{file.name} is cut short ({size:,} of {file.size:,} bytes): fetching the rest")
        else:
            what = "has wrong bytes" if size == file.size else f"has {size:,} bytes instead of {file.size:,}"
            self._note(f"{file.name} {what}: fetching it again")
            path.unlink()
        return False

    def _digests(self, file: RemoteFile, path: Path, *, counted: bool = False) -> Digests:
        """counted: these bytes were not fetched now, so that reading them is the progress there is."""
        self.progress.begin(file.name, file.size, 0, "checking", counted=counted)
        return digest_file(
            path,
            blob=file.sha256 is None,
            marks=_marks(path) if file.name.endswith(".safetensors") else (),
            stop=self._stop,
            progress=lambda nbytes: self.progress.advance(file.name, nbytes),
        )

    def _keep(self, file: RemoteFile, partial: Path, path: Path, digests: Digests) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(path)
        sync_directory(path.parent)
        self._state.found_right(file, digests)
        with self._lock:
            self._fetched.append(file.name)

    def _begin_again(self, file: RemoteFile, partial: Path, patience: Patience, digests: Digests) -> None:
        partial.unlink(missing_ok=True)
        found = digests.sha256 if file.sha256 else digests.blob
        self._note(f"{file.name} arrived with wrong bytes: fetching it again")
        patience.after(
            Failed(f"wrong bytes: {found} arrived, the hub's list says {file.key}", Kind.REFUSED), file.name
        )


def _marks(path: Path) -> list[int]:
    """Where a shard's digest is looked at on the way; nowhere when it does not begin like a shard."""
    try:
        return marks_of(read_header(path))
    except ShardError:
        return []
