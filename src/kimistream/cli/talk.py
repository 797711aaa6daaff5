"""From the options of a conversation to an open model and the conversation in it.

Knows: the options that `chat` and `run --chat` share, and how a session file joins them.
Does not know: how an answer is shown (chat_view), or what a person types (chat).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from kimistream.budget import format_size
from kimistream.cli.files import check_session_target, read_format, read_tools
from kimistream.cli.sampling import Sampling, spell
from kimistream.errors import TextError, UsageError

if TYPE_CHECKING:
    from kimistream.engine.conversation import Conversation
    from kimistream.engine.model import Model
    from kimistream.engine.options import SamplingOptions

GROUP = Group("Conversation", sort_key=1)
DEFAULT_ANSWER = 4096
"""Positions planned for beside those of the history, when no --context is given."""

Note = Callable[[str], None]


def _help(text: str) -> Parameter:
    return Parameter(help=text, group=GROUP, negative=())


@Parameter(name="*")
@dataclass(frozen=True)
class TalkOptions:
    """How a conversation is set up; None where an option was not given."""

    system: Annotated[str | None, _help("A system message at the beginning.")] = None
    tools: Annotated[str | None, _help("A JSON file with a list of tools the model may call.")] = None
    format: Annotated[str | None, _help("The form of the answers: `json`, or the file of a JSON schema.")] = (
        None
    )
    think: Annotated[
        str | None, _help("How much to think before an answer: low, high, max or off. Default: max.")
    ] = None

    def given(self) -> list[str]:
        """The options that were given, as they are spelled."""
        return [f"--{name}" for name, value in vars(self).items() if value is not None]


@dataclass(frozen=True)
class Room:
    """Memory, time and drives: the options of `Model.open` that a person gives."""

    memory: str | None
    context: int | None
    threads: int | None
    chunk: int | None
    pack: Path | None = None
    also: tuple[Path, ...] = ()


@dataclass
class Talk:
    """An open conversation: what `chat` and `run --chat` work with."""

    model: Model
    conversation: Conversation
    sampling: SamplingOptions
    session: Path | None

    def save(self, path: Path | None = None) -> tuple[Path, int]:
        """Write the session; where, and its bytes. Raises OutputError, UsageError where no file is named."""
        from kimistream.engine.conversation_file import save_conversation

        target = path if path is not None else self.session
        if target is None:
            raise UsageError("no file is named for the session", "Name one: /save talk.session")
        opened = self.model.checkpoint
        return target, save_conversation(target, self.conversation, opened, self.sampling.seed)

    def load(self, path: Path) -> None:
        """Go on with a saved session. Raises SessionError."""
        from kimistream.engine.conversation_file import restore_conversation
        from kimistream.engine.session_file import open_session

        stored = open_session(path, self.model.checkpoint)
        _check_room(path, len(stored.ids), self.model.context)
        note = restore_conversation(self.conversation, stored)
        if note.seed is not None:
            self.sampling = replace(self.sampling, seed=note.seed)


def open_talk(
    checkpoint: Path,
    options: TalkOptions,
    sampling: Sampling,
    room: Room,
    *,
    session: Path | None,
    more: str | None,
    max_tokens: int | None,
    stack: ExitStack,
    note: Note,
    status: Note,
) -> Talk:
    """Check everything, open the model, and set the conversation up; `stack` closes it again.

    more: the user's message that will be said at once. Everything that can be refused is refused before
    memory is taken.
    """
    from kimistream.engine.thinking import checked_think

    think = checked_think(options.think, "--think") if options.think is not None else None
    tools = read_tools(options.tools) if options.tools is not None else None
    response_format = read_format(options.format) if options.format is not None else None

    from kimistream.checkpoint.table import Checkpoint
    from kimistream.engine.conversation import Conversation, prompt_ids
    from kimistream.engine.conversation_file import Note as SavedNote
    from kimistream.engine.conversation_file import read_note, restore_conversation
    from kimistream.engine.model import Model
    from kimistream.engine.recommended import recommended
    from kimistream.engine.session import snapshot_bytes
    from kimistream.engine.session_file import open_session
    from kimistream.engine.text import try_tokenizer
    from kimistream.model.state import state_bytes

    opened = Checkpoint.open(checkpoint, room.also)
    tokenizer, reason = try_tokenizer(checkpoint, opened.config)
    if tokenizer is None:
        raise TextError(
            f"a conversation needs the checkpoint's tokenizer: {reason}",
            "Fetch both files, or use `kimistream run --ids`.",
        )
    stored = open_session(session, opened) if session is not None and session.exists() else None
    saved = read_note(stored, "chat") if stored is not None else SavedNote(kind="chat")
    setup: dict[str, Any] = {
        "messages": _with_system(saved.messages, options.system),
        "tools": tools if tools is not None else saved.tools,
        "think": think if think is not None else saved.think,
        "response_format": response_format if response_format is not None else saved.response_format,
    }
    chosen = sampling.options(recommended(checkpoint), max_tokens=max_tokens)
    chosen = replace(chosen, seed=chosen.seed if chosen.seed is not None else saved.seed).with_seed()
    chosen.check_vocabulary(opened.config.vocab_size, spell)

    first = setup | {"messages": [*setup["messages"], {"role": "user", "content": more or ""}]}
    used = max(len(prompt_ids(tokenizer, **first)), len(stored.ids) if stored else 0)
    context = room.context
    if context is None:
        context = used + (max_tokens if more is not None and max_tokens is not None else DEFAULT_ANSWER)
    _check_room(session, used, context)
    if session is not None:
        check_session_target(session, state_bytes(opened.config, context) + snapshot_bytes(opened.config))
    model = stack.enter_context(
        Model.open(
            opened,
            memory=room.memory,
            context=context,
            threads=room.threads,
            chunk=room.chunk,
            snapshots=1,
            text=tokenizer,
            pack=room.pack,
            note=note,
            status=status,
        )
    )
    conversation = Conversation(model)
    talk = Talk(model, conversation, chosen, session)
    if stored is not None:
        restore_conversation(conversation, stored)
        note(
            f"session {session}: {len(stored.ids)} tokens, {len(saved.messages)} messages, "
            f"{format_size(stored.nbytes)}"
        )
    for name, value in setup.items():
        setattr(conversation, name, value)
    return talk


def _with_system(messages: list[dict[str, Any]], system: str | None) -> list[dict[str, Any]]:
    """The messages with another system message at the beginning, if one is given."""
    if system is None:
        return list(messages)
    old = bool(messages) and messages[0].get("role") == "system"
    return [{"role": "system", "content": system}, *messages[old:]]


def _check_room(session: Path | None, used: int, context: int) -> None:
    if used >= context:
        what = f"session {session}" if session is not None else "the conversation"
        raise UsageError(
            f"--context {context}: {what} has {used} tokens already",
            f"Give --context {used + DEFAULT_ANSWER}, for example.",
        )
