"""The session of a plain continuation: which text was continued, and how far it is computed.

Knows: what `run --session` saves beside the state, and how a text goes on without a prompt.
Does not know: the file (engine.session_file), or conversations (engine.conversation_file).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kimistream.budget import format_size
from kimistream.checkpoint.table import Checkpoint
from kimistream.cli.files import check_session_target
from kimistream.engine.conversation_file import Note, read_note
from kimistream.engine.sequence import LiveSequence
from kimistream.engine.session import snapshot_bytes
from kimistream.engine.session_file import open_session
from kimistream.errors import UsageError
from kimistream.model.state import state_bytes


class TextSession:
    """A session file that is there, or that will be. Raises SessionError for one that cannot be used."""

    def __init__(self, path: Path, checkpoint: Checkpoint) -> None:
        self._path, self._checkpoint = path, checkpoint
        self._stored = open_session(path, checkpoint) if path.exists() else None
        self._note = read_note(self._stored, "text") if self._stored is not None else Note(kind="text")
        self.count = len(self._stored.ids) if self._stored is not None else 0
        """Tokens whose state is saved."""

    @property
    def prompt(self) -> int:
        """How many of the tokens were the prompt."""
        return self._note.prompt

    @property
    def seed(self) -> int | None:
        """The seed of the text so far."""
        return self._note.seed

    def ids(self) -> list[int]:
        """The whole text so far. Raises UsageError when there is none yet."""
        if self._stored is None:
            raise UsageError(
                f"--session {self._path} does not exist yet: a prompt is needed",
                "Give --prompt, --prompt-file or --ids.",
            )
        return [*self._stored.ids.tolist(), *self._note.pending]

    def check_target(self, context: int) -> None:
        """Refuse a file that could not be written, before the work. Raises OutputError."""
        config = self._checkpoint.config
        check_session_target(self._path, state_bytes(config, context) + snapshot_bytes(config))

    def restore(self, sequence: LiveSequence) -> None:
        """Take the saved state up. Raises SessionError."""
        if self._stored is not None:
            sequence.restore(self._stored)

    def save(self, sequence: LiveSequence, prompt: int, seed: int | None, *, stopped: bool) -> str:
        """Write the session; a line that says so. stopped: the last token is an end token, no text."""
        sequence.settle()
        pending = sequence.pending
        if stopped:
            pending = pending[:-1]
        note = Note(kind="text", pending=pending, prompt=prompt, seed=seed)
        nbytes = sequence.save(self._path, self._checkpoint, msgspec.json.encode(note))
        return f"session {self._path}: {len(sequence.ids)} tokens, {format_size(nbytes)}"
