"""A conversation put away with its state, and taken up again.

Knows: what the note of a session file says of a conversation.
Does not know: the file (session_file), or how a state is set back (sequence).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kimistream.checkpoint.table import Checkpoint
from kimistream.engine.conversation import Conversation
from kimistream.engine.session_file import AGAIN, StoredSession
from kimistream.engine.thinking import THINK
from kimistream.errors import SessionError


class Note(msgspec.Struct, omit_defaults=True):
    """What a session file holds beside the state. `kind` tells a conversation from a text."""

    kind: str = ""
    messages: list[dict[str, Any]] = []
    tools: list[Any] | None = None
    think: str = "max"
    response_format: Any = None
    seed: int | None = None
    pending: list[int] = []
    """Of a text: tokens behind the saved position."""
    prompt: int = 0
    """Of a text: how many of its tokens were the prompt."""


def read_note(stored: StoredSession, kind: str) -> Note:
    """The note of a session of a kind, `chat` or `text`. Raises SessionError for another."""
    try:
        note = msgspec.json.decode(stored.note, type=Note) if stored.note else Note()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SessionError(f"session {stored.path}: its note cannot be read ({error})", AGAIN) from None
    if note.kind != kind or note.think not in THINK:
        verb = {"chat": "`kimistream chat`", "text": "`kimistream run`"}
        raise SessionError(
            f"session {stored.path} holds {note.kind or 'no'!r}, and a {kind!r} is needed",
            f"Continue it with {verb[note.kind]}." if note.kind in verb and note.kind != kind else AGAIN,
        )
    return note


def save_conversation(path: str | Path, talk: Conversation, checkpoint: Checkpoint, seed: int | None) -> int:
    """Write a conversation with its state; the file's bytes. seed: the one in use, to go on with."""
    note = Note(
        kind="chat",
        messages=talk.messages,
        tools=talk.tools,
        think=talk.think,
        response_format=talk.response_format,
        seed=seed,
    )
    return talk.sequence.save(path, checkpoint, msgspec.json.encode(note))


def restore_conversation(talk: Conversation, stored: StoredSession) -> Note:
    """Set a conversation to a saved one. Raises SessionError; the conversation is then as it was, without state."""
    note = read_note(stored, "chat")
    talk.sequence.restore(stored)
    talk.messages, talk.tools, talk.think = list(note.messages), note.tools, note.think
    talk.response_format = note.response_format
    return note
