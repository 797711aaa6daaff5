"""The one exception tree: every expected failure of kimistream.

Knows: what can go wrong, in words for the person who has to mend it.
Does not know: where it is raised, or how it is shown.

    KimistreamError                 exit code 1
    ├── UsageError                  exit code 2: an option's value, or options that exclude each other
    ├── ConfigError                 config.json lacks a field or asks for something that is not built
    ├── CheckpointError             the directory is not a whole checkpoint
    │   ├── ShardError              a file is missing, cut short, or its header does not hold
    │   └── TensorError             a tensor is missing, has another shape or type, or holds a bad value
    ├── BudgetError                 the memory budget is below the least that works
    ├── ReadError                   the disk gave an error in the middle of the work
    ├── NumberError                 a weight or a result is NaN or infinite
    ├── DownloadError               the hub cannot be reached, refuses, or keeps sending wrong bytes
    ├── TextError                   the vocabulary or a text that cannot be encoded
    ├── SessionError                a saved session is damaged or belongs to another checkpoint
    ├── PackError                   a pack is damaged, cut short, or of another checkpoint
    ├── OutputError                 a result cannot be written
    └── Interrupted                 exit code 130: stopped by the user

A message has two parts: what is wrong (the file or the option, and the figures on both sides), and a
remedy (what to do next).
"""

from __future__ import annotations


class KimistreamError(Exception):
    """An expected failure: `what` is wrong, with the figures on both sides, and the `remedy`: what to do next."""

    exit_code = 1

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n{self.remedy}" if self.remedy else self.what


class UsageError(KimistreamError):
    """A command-line option or an argument of the Python API has a value that cannot be used."""

    exit_code = 2


class ConfigError(KimistreamError):
    """`config.json` lacks a needed field, or a field has a value that is not understood."""


class CheckpointError(KimistreamError):
    """The directory does not hold a whole, readable checkpoint."""


class ShardError(CheckpointError):
    """A shard is missing, has another size than its header says, or its header is not valid."""


class TensorError(CheckpointError):
    """A tensor is missing, or has another shape, type or content than the config asks for."""


class BudgetError(KimistreamError):
    """The memory budget is below the least that this checkpoint and these options need."""

    def __init__(self, what: str, remedy: str = "", *, least_bytes: int = 0) -> None:
        super().__init__(what, remedy)
        self.least_bytes = least_bytes


class ReadError(KimistreamError):
    """The operating system failed to read bytes that the checkpoint's headers promise."""


class NumberError(KimistreamError):
    """A weight or a result is NaN or infinite; the tensor is named."""


class DownloadError(KimistreamError):
    """A file cannot be fetched: the hub cannot be reached, refuses, or keeps sending wrong bytes."""


class TextError(KimistreamError):
    """The vocabulary files cannot be used, or a text or token id cannot be converted."""


class SessionError(KimistreamError):
    """A saved session cannot be used: damaged, cut short, or of another checkpoint."""


class PackError(KimistreamError):
    """A pack of dense weights cannot be used: damaged, cut short, or of another checkpoint."""


class OutputError(KimistreamError):
    """A file or directory for a result cannot be created or written."""


class Interrupted(KimistreamError):
    """The user stopped the work."""

    exit_code = 130
