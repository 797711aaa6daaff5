"""Option values: what a person types, turned into numbers or refused with an example.

Knows: the words of the command line.
Does not know: what the options do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, Token

from kimistream.errors import UsageError


def _whole(kind: type, tokens: Sequence[Token]) -> int:
    value = tokens[0].value
    try:
        return int(value)
    except ValueError:
        raise UsageError(
            f"{tokens[0].keyword} {value}: is not a whole number", f"Write {tokens[0].keyword} 8, say."
        ) from None


Whole = Annotated[int, Parameter(converter=_whole)]
"""A whole number; `1.5`, `1e3` and `abc` are refused, never rounded."""


def usable_path(option: str, text: str) -> Path:
    """A path that the system takes, whether something is there or not; `option` is for the message."""
    try:
        os.stat(text)
    except (FileNotFoundError, NotADirectoryError) as error:
        if not text:
            raise UsageError(f"{option}: the path is empty", "Name a file or a directory.") from error
    except (OSError, ValueError) as error:
        shown = text if len(text) <= 60 else text[:57] + "..."
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{option} {shown!r}: is no usable path ({why})", "Name another.") from None
    return Path(text)


def _file(kind: type, tokens: Sequence[Token]) -> Path:
    option, text = tokens[0].keyword or "the file", tokens[0].value
    path = usable_path(option, text)
    if not path.name:
        raise UsageError(f"{option} {text}: is a directory; needed: a file", f"Write {option} FILE.")
    return path


FilePath = Annotated[Path, Parameter(converter=_file)]
"""A file that is there or will be; a name that the system does not take is refused at once."""

DEMO = "demo"
"""In place of a checkpoint directory: the model embedded in the package."""


def checkpoint_path(text: str) -> Path:
    """A checkpoint directory, or the embedded model for the word `demo`."""
    if text == DEMO and not os.path.exists(text):
        from kimistream.demo import path

        return path()
    return usable_path("the checkpoint", text)


Also = Annotated[list[str] | None, Parameter(name="--also", negative=())]
"""Further directories, each given with an option of its own."""


def also_paths(given: list[str] | None) -> list[Path]:
    """The directories of --also."""
    return [usable_path("--also", text) for text in given or ()]


def at_least(option: str, value: int | None, least: int) -> int | None:
    """Refuse a number below its least."""
    if value is not None and value < least:
        raise UsageError(
            f"{option} {value}: must be {least} or more", f"Write {option} {max(least, 1)}, say."
        )
    return value


def prompt_ids(text: str, option: str = "--ids") -> list[int]:
    """Token ids written as `1,2,3` (commas, spaces or both)."""
    ids = []
    for word in text.replace(",", " ").split():
        try:
            ids.append(int(word))
        except ValueError:
            raise UsageError(
                f"{option}: {word!r} is not a token id", "Write ids as 1008,10484,318."
            ) from None
    return ids


def layer_list(option: str, text: str) -> list[int]:
    """Layer numbers written as `4,5`."""
    try:
        return [int(word) for word in text.replace(",", " ").split()]
    except ValueError:
        raise UsageError(f"{option} {text}: is not a list of layers", f"Write {option} 4,5.") from None


def read_prompt_file(path: str, option: str = "--prompt-file") -> str:
    """The text of a file, or of standard input for `-`; UTF-8."""
    try:
        raw = sys.stdin.buffer.read() if path == "-" else usable_path(option, path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{option} {path}: cannot be read ({error.strerror})",
            "Name a file that is there, or - for stdin.",
        ) from None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{option} {path}: byte {error.start} is not UTF-8", "Save the file as UTF-8."
        ) from None


def exactly_one(given: dict[str, object]) -> str:
    """The name of the one option that was given; refuses none and more than one."""
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        options = ", ".join(given)
        got = " and ".join(names) if names else "none"
        raise UsageError(f"exactly one of {options} is needed; given: {got}", "Give one of them.")
    return names[0]
