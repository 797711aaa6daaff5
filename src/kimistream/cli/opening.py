"""The live line and the notes while a model is being opened, and the opening of a conversation with them.

Knows: that opening says what it does, and what a conversation says when it is open.
Does not know: how a conversation is set up (talk).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kimistream.cli.live import Live
from kimistream.cli.sampling import Sampling, describe
from kimistream.cli.status import StatusLine
from kimistream.cli.talk import Room, Talk, TalkOptions, open_talk


class Opening:
    """The live line and the notes while a model is being opened."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live = Live()
        self._line = StatusLine(self._live.text, quiet=quiet)

    def __enter__(self) -> Opening:
        self._line.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._line.__exit__(None, None, None)

    def note(self, text: str) -> None:
        """One line worth keeping."""
        if not self._quiet:
            self._line.note(f"kimistream: {text}")

    def status(self, text: str) -> None:
        """What is being done."""
        self._live.doing = text


@contextmanager
def opened_talk(
    checkpoint: Path,
    options: TalkOptions,
    sampling: Sampling,
    room: Room,
    *,
    session: Path | None,
    more: str | None,
    max_tokens: int | None,
    quiet: bool,
) -> Iterator[tuple[Talk, Opening]]:
    """A conversation (see `open_talk`), open while the block runs, and where further notes go."""
    started = time.perf_counter()
    with ExitStack() as stack:
        with Opening(quiet=quiet) as opening:
            talk = open_talk(
                checkpoint,
                options,
                sampling,
                room,
                session=session,
                more=more,
                max_tokens=max_tokens,
                stack=stack,
                note=opening.note,
                status=opening.status,
            )
            opening.note(
                f"{describe(talk.sampling)}; thinking {talk.conversation.think}; {talk.model.context} positions; "
                f"ready after {time.perf_counter() - started:.1f} s"
                + ("; /help for help" if more is None else "")
            )
        yield talk, opening
