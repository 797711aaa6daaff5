"""What a pull remembers in the checkpoint directory, so that the next one goes on where it ended.

Knows: `.kimistream/pull.json` (the repository, the commit, the files found right), the partial files, and
the lock that keeps a second pull out. Does not know: how anything is fetched or checked.

A file counts as found right only while its size and time are those it had when its digest was compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from pathlib import Path

import msgspec

from kimistream.checkpoint.digest import Digests
from kimistream.checkpoint.manifest import Manifest, ManifestFile, is_inside
from kimistream.checkpoint.pull_hub import RemoteFile
from kimistream.checkpoint.whole import FOLDER, write_whole
from kimistream.errors import CheckpointError, KimistreamError, OutputError, UsageError

STATE_NAME = "pull.json"


class FoundRight(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file whose digest was compared with the hub's."""

    size: int
    mtime_ns: int
    sha256: str
    marks: bytes = b""


class Pin(msgspec.Struct):
    """What the directory holds: one commit of one repository. `revision` is how it was asked for."""

    repo: str
    revision: str
    commit: str
    files: dict[str, FoundRight] = msgspec.field(default_factory=dict)
    format: int = 1


class PullState:
    """The memory of one directory. Its methods may be called by several threads."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.folder = directory / FOLDER
        self.path = self.folder / STATE_NAME
        self.pin: Pin | None = None
        self._lock = threading.Lock()
        self._handle = -1
        self._made = False

    def open(self) -> None:
        """Take the directory and read what is known of it. Raises OutputError, CheckpointError."""
        self._made = not self.directory.exists()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise OutputError(
                f"{self.directory} cannot be written: {error.strerror}",
                "Name a directory that you may write to, on a disk with room.",
            ) from None
        if not _take(self._handle):
            os.close(self._handle)
            self._handle = -1
            raise KimistreamError(
                f"another kimistream pull is at work in {self.directory}", "Wait for it, or end it first."
            )
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be read: {error.strerror}", "Check its permissions."
            ) from None
        try:
            pin = msgspec.json.decode(data, type=Pin)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CheckpointError(
                f"{self.path} is not valid: {error}", "Delete it: the next pull checks the files anew."
            ) from None
        self.pin = pin

    def close(self) -> None:
        """Give the directory back; one that nothing came into is as it was before."""
        if self._handle < 0:
            return
        os.close(self._handle)  # and with it goes the lock
        self._handle = -1
        if self.pin is None:
            with contextlib.suppress(OSError):
                (self.folder / "lock").unlink()
                self.folder.rmdir()
                if self._made:
                    self.directory.rmdir()

    def pinned_commit(self, repo: str, revision: str | None) -> str | None:
        """The commit this directory is being filled from, or None when it is new.

        Raises UsageError when it holds another repository or another revision than asked for.
        """
        pin = self.pin
        if pin is None:
            return None
        if pin.repo != repo:
            raise UsageError(
                f"{self.directory} holds files of {pin.repo}; asked for: {repo}",
                f"Name another directory, or delete {self.path} if these files may be replaced.",
            )
        if revision is not None and revision not in (pin.revision, pin.commit):
            raise UsageError(
                f"{self.directory} holds revision {pin.revision} ({pin.commit}) of {repo}; "
                f"asked for: --revision {revision}",
                f"Name another directory; or leave --revision out to go on with this one; or delete "
                f"{self.path} to change to {revision} (files that are the same are kept).",
            )
        return pin.commit

    def start(self, repo: str, revision: str, commit: str) -> None:
        """Remember what is being fetched, before any of it is."""
        if self.pin is None:
            self.pin = Pin(repo, revision, commit)
            self._write()

    def is_right(self, file: RemoteFile) -> bool:
        """Whether the file is there as it was when it was found right."""
        found = self.pin.files.get(file.name) if self.pin is not None else None
        try:
            status = (self.directory / file.name).stat()
        except OSError:
            return False
        return found is not None and (found.size, found.mtime_ns) == (status.st_size, status.st_mtime_ns)

    def found_right(self, file: RemoteFile, digests: Digests) -> None:
        """Remember that the file, as it is there now, has these digests."""
        status = (self.directory / file.name).stat()
        with self._lock:
            if self.pin is not None:
                self.pin.files[file.name] = FoundRight(
                    status.st_size, status.st_mtime_ns, digests.sha256, digests.marks
                )
                self._write()

    def forget(self, file: RemoteFile) -> None:
        """The file is no longer known to be right."""
        with self._lock:
            if self.pin is not None and self.pin.files.pop(file.name, None) is not None:
                self._write()

    def _write(self) -> None:
        write_whole(self.path, msgspec.json.format(msgspec.json.encode(self.pin), indent=1))

    def partial(self, file: RemoteFile) -> Path:
        """Where the file grows. The name carries its content, so that no other content is continued."""
        digest = hashlib.sha256(f"{file.name}\0{file.key}".encode()).hexdigest()
        return self.folder / "partial" / f"{Path(file.name).name}.{digest[:16]}.partial"

    def drop_stale_partials(self, files: list[RemoteFile]) -> None:
        """Delete partial files of contents that are none of `files`."""
        keep = {self.partial(file).name for file in files}
        folder = self.folder / "partial"
        try:
            names = os.listdir(folder)
        except OSError:
            return
        for name in names:
            if name.endswith(".partial") and name not in keep:
                (folder / name).unlink(missing_ok=True)

    def manifest(self, files: list[RemoteFile]) -> Manifest:
        """All files of the commit that are here and were found right."""
        pin = self.pin
        if pin is None:
            raise RuntimeError("no pull was started")
        held = {
            file.name: ManifestFile(file.size, pin.files[file.name].sha256, pin.files[file.name].marks)
            for file in files
            if is_inside(file.name) and self.is_right(file)
        }
        return Manifest("hub", held, pin.repo, pin.commit)


def _take(handle: int) -> bool:
    """An exclusive lock that ends with the process, however it ends."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True
