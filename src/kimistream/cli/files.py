"""Files that a command reads or will write, refused by name before any work begins.

Knows: JSON files of messages, tools and schemas; whether a session can be written where it shall go.
Does not know: what is in them beyond their outline.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec

from kimistream.budget import format_size
from kimistream.checkpoint.fields import shown
from kimistream.cli.options import usable_path
from kimistream.errors import OutputError, UsageError

JSON_OBJECT = "json"
"""The word that asks for any JSON, in place of a schema's file."""


def read_json(option: str, path: str) -> Any:
    """The value in a JSON file, or on standard input for `-`."""
    try:
        raw = sys.stdin.buffer.read() if path == "-" else usable_path(option, path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{option} {path}: cannot be read ({error.strerror})",
            "Name a file that is there, or - for stdin.",
        ) from None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{option} {path}: is not JSON ({error})", "Write UTF-8 JSON.") from None


def read_tools(path: str) -> list[Any]:
    """Tool declarations: a JSON list of objects with a name, OpenAI's or the bare function."""
    value = read_json("--tools", path)
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise UsageError(
            f"--tools {path}: holds {shown(value)}; needed: a list of tools",
            'Write [{"type": "function", "function": {"name": ..., "parameters": {...}}}].',
        )
    return value


def read_format(word: str) -> dict[str, Any]:
    """A response format: `json`, or the file of a JSON schema."""
    if word == JSON_OBJECT:
        return {"type": "json_object"}
    value = read_json("--format", word)
    if not isinstance(value, dict):
        raise UsageError(
            f"--format {word}: holds {shown(value)}; needed: a JSON schema (an object)",
            "Or write --format json.",
        )
    return {"type": "json_schema", "json_schema": {"schema": value}}


def read_messages(path: str) -> dict[str, Any]:
    """Messages: a JSON list of them, or an object with `messages` and perhaps `tools` and others."""
    value = read_json("--messages", path)
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        raise UsageError(
            f"--messages {path}: holds {shown(value)}; needed: a list of messages, or an object with `messages`",
            'Write [{"role": "user", "content": "Hello"}].',
        )
    return value


def check_session_target(path: Path, needed: int) -> None:
    """Refuse a session file that could not be written: before hours of work, not after them.

    Raises OutputError naming the path, what it needs and what is free.
    """
    if path.is_dir():
        raise OutputError(f"--session {path}: is a directory", "Name a file, for example talk.session.")
    partial = path.with_name(path.name + ".partial")
    try:
        free = shutil.disk_usage(path.absolute().parent).free
        partial.open("ab").close()
        partial.unlink()
    except OSError as error:
        raise OutputError(
            f"--session {path}: cannot be written ({error.strerror})",
            "Name a file in a directory that exists and that you may write to.",
        ) from None
    if free < needed:
        raise OutputError(
            f"--session {path}: up to {format_size(needed)} are needed and {format_size(free)} are free",
            "Free some space, name a file on another drive, or give a smaller --context.",
        )
