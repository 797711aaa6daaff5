"""The hub's own knowledge of a repository: which commit a revision is, and which files it holds.

Knows: huggingface_hub's metadata calls, where tokens and endpoints come from, and how to put the hub's
refusals in words. Does not know: how bytes are fetched (pull_source), or what is wanted of them.

huggingface_hub is imported only here and in pull_source, and only when something is pulled. The token is
found by it in its usual places (HF_TOKEN, `hf auth login`); no message contains it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from kimistream.checkpoint.manifest import is_inside
from kimistream.checkpoint.pull_patience import Failed, Kind, Patience, judge, told_wait
from kimistream.errors import DownloadError, KimistreamError, UsageError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

DEFAULT_ENDPOINT = "https://huggingface.co"
T = TypeVar("T")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{6,}")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a commit. `sha256` is there for large files (LFS), git's `blob` id for all others."""

    name: str
    size: int
    sha256: str | None
    blob: str
    xet_hash: str | None = None

    @property
    def key(self) -> str:
        """Names the content."""
        return self.sha256 or self.blob

    def matches(self, sha256: str, blob: str) -> bool:
        """Whether digests of a local file are this file's."""
        return sha256 == self.sha256 if self.sha256 else blob == self.blob


class Hub:
    """One repository at one endpoint."""

    def __init__(
        self,
        repo: str,
        *,
        endpoint: str | None = None,
        token: str | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        """token: by default from the usual places; note: told why a question is asked again.

        Raises UsageError for a name that is no repository's.
        """
        self._note = note
        api, get_token, validate = _library()
        self.repo = repo
        self.endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
        if not self.endpoint.startswith(("https://", "http://")):
            raise UsageError(
                f"HF_ENDPOINT {self.endpoint!r} is not an address",
                f"For example HF_ENDPOINT={DEFAULT_ENDPOINT}.",
            )
        self.token: str | None = token if token is not None else get_token()
        try:
            validate(repo)
        except ValueError:
            raise UsageError(
                f"{repo!r} is not the name of a repository",
                "Write OWNER/NAME, for example moonshotai/Kimi-K3.",
            ) from None
        self._api: HfApi = api(
            endpoint=self.endpoint, token=self.token or False, library_name="kimistream", user_agent=None
        )

    def commit_of(self, revision: str, patience: Patience) -> str:
        """The commit (40 hex digits) that a branch, tag or commit names now."""
        info = self._ask(
            f"{self.repo} at {revision}", patience, lambda: self._api.model_info(self.repo, revision=revision)
        )
        commit = getattr(info, "sha", None)
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise DownloadError(
                f"{self.endpoint} names no commit for {self.repo} at {revision} (it says {commit!r})",
                "Check that HF_ENDPOINT speaks the hub's protocol.",
            )
        return commit

    def files_of(self, commit: str, patience: Patience) -> list[RemoteFile]:
        """All files of a commit, by name."""

        def ask() -> list[Any]:
            return list(self._api.list_repo_tree(self.repo, recursive=True, revision=commit))

        files = []
        for entry in self._ask(f"the files of {self.repo}", patience, ask):
            if not hasattr(entry, "blob_id"):
                continue  # a folder
            if not is_inside(entry.path) or not isinstance(entry.size, int) or entry.size < 0:
                raise DownloadError(
                    f"{self.endpoint} lists {entry.path!r} in {self.repo}, which is no usable file name",
                    "Check that HF_ENDPOINT is a hub that you trust.",
                )
            lfs = entry.lfs.sha256 if entry.lfs is not None else None
            size = entry.lfs.size if entry.lfs is not None else entry.size
            files.append(RemoteFile(entry.path, size, lfs, entry.blob_id, getattr(entry, "xet_hash", None)))
        return sorted(files, key=lambda file: file.name)

    def url(self, file: RemoteFile, commit: str) -> str:
        """Where the bytes of a file are asked for."""
        from huggingface_hub import hf_hub_url

        return str(hf_hub_url(self.repo, file.name, revision=commit, endpoint=self.endpoint))

    def headers(self) -> dict[str, str]:
        """Headers for this hub only; a redirect to another host must not carry them on."""
        from huggingface_hub.utils import build_hf_headers

        found: dict[str, str] = build_hf_headers(token=self.token or False, library_name="kimistream")
        return found

    def scrub(self, text: str) -> str:
        """`text` without tokens and without the signed part of addresses."""
        if self.token:
            text = text.replace(self.token, "***")
        return re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1?...", _TOKEN.sub("hf_***", text))

    def describe(self, error: BaseException) -> str:
        """An exception of the network library in one line."""
        text = " ".join(self.scrub(str(error)).split())
        name = type(error).__name__
        if "timeout" in name.lower():
            return "no answer in time"
        return f"{name}: {text[:200]}" if text else name

    def _ask(self, what: str, patience: Patience, question: Callable[[], T]) -> T:
        while True:
            try:
                return question()
            except KimistreamError:
                raise
            except Exception as error:
                patience.after(self._failure(error, what), f"{what} ({self.endpoint})", self._note)

    def _failure(self, error: Exception, what: str) -> Failed:
        """What an exception of huggingface_hub says; raises DownloadError where asking again is in vain."""
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "OfflineModeIsEnabled" in kinds:
            raise DownloadError(
                "HF_HUB_OFFLINE is set, so nothing can be fetched", "Unset HF_HUB_OFFLINE."
            ) from None
        if "GatedRepoError" in kinds:
            self._refuse(f"{self.repo} asks for consent to its terms before it can be fetched")
        if "RevisionNotFoundError" in kinds:
            raise DownloadError(
                f"{what}: {self.endpoint} knows no such revision", "Give a branch, a tag or a commit of it."
            ) from None
        if "RepositoryNotFoundError" in kinds:
            self._refuse(f"{self.endpoint} has no repository {self.repo}, or does not show it to you")
        response = getattr(error, "response", None)
        if response is not None:
            failed = judge(response.status_code, response.headers)
            if failed is not None and failed.kind is Kind.REFUSED:
                if response.status_code in (401, 403):
                    self._refuse(f"{self.endpoint} refused {what} (HTTP {response.status_code})")
                raise DownloadError(
                    f"{what}: {failed.why} from {self.endpoint}", "Check the name and HF_ENDPOINT."
                ) from None
            return failed or Failed(self.describe(error), wait=told_wait(response.headers))
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise DownloadError(
                f"{self.endpoint}: its certificate cannot be checked ({self.describe(error)})",
                "Set SSL_CERT_FILE to the certificates of your network.",
            ) from None
        return Failed(self.describe(error))

    def _refuse(self, what: str) -> NoReturn:
        have = "The token in use is not allowed to." if self.token else "No token is in use."
        raise DownloadError(
            what,
            f"{have} Accept the terms on {self.endpoint}/{self.repo} if it has any, then log in with "
            "`hf auth login` or set HF_TOKEN.",
        )


def _library() -> tuple[Any, Any, Any]:
    try:
        from huggingface_hub import HfApi, get_token
        from huggingface_hub.utils import disable_progress_bars, validate_repo_id
    except ImportError as error:
        raise DownloadError(
            f"huggingface_hub cannot be loaded ({error}), which pull needs",
            "Run: pip install 'huggingface_hub>=1.0'",
        ) from None
    disable_progress_bars()
    return HfApi, get_token, validate_repo_id
