"""The turns of a chat: lines in, answers out, and the commands that begin with a slash.

Knows: what each command does, and what happens to the conversation when an answer is stopped.
Does not know: how lines are edited (line_input), or how an answer looks (chat_view).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing

from kimistream.budget import format_size
from kimistream.cli.chat_view import AnswerView, ending, stats_lines
from kimistream.cli.line_input import LineInput
from kimistream.cli.options import usable_path
from kimistream.cli.status import harmless
from kimistream.cli.talk import Talk
from kimistream.engine.answer import Finished
from kimistream.engine.thinking import THINK, checked_think
from kimistream.errors import KimistreamError, UsageError

HELP = f"""\
/save [FILE]   write the conversation and its state; without a FILE to that of --session
/load FILE     go on with a saved conversation
/undo          take back your last message and its answer
/reset         forget the conversation, but for the system message
/think WORD    how much to think before an answer: {", ".join(THINK)}
/stats         tokens, memory, bytes read, the seed
/help          this
/exit          leave; so does Ctrl-D
//TEXT         say a text that begins with a slash
A line that ends in a backslash goes on in the next one; on a terminal Esc and Enter begins a new line.
Ctrl-C stops an answer and keeps what was said of it."""

PROMPT = "> "


class ChatLoop:
    """One chat from its first line to its last."""

    def __init__(
        self, talk: Talk, lines: LineInput, *, quiet: bool, max_tokens: int | None, save: bool
    ) -> None:
        self._talk = talk
        self._lines = lines
        self._quiet = quiet
        self._max_tokens = max_tokens
        self._save_turns = save and talk.session is not None
        self._commands: dict[str, Callable[[str], None]] = {
            "save": self._save,
            "load": self._load,
            "undo": self._undo,
            "reset": self._reset,
            "think": self._think,
            "stats": self._stats,
            "help": lambda rest: say(HELP),
        }

    def run(self) -> None:
        """Read lines until there are no more."""
        while True:
            try:
                line = self._lines.read(PROMPT)
            except KeyboardInterrupt:
                if not self._lines.interactive:
                    raise
                say("Ctrl-D or /exit leaves")
                continue
            if line is None or line.strip() in ("/exit", "/quit"):
                return
            if line.strip():
                self._line(line)

    def _line(self, line: str) -> None:
        if line.startswith("/") and not line.startswith("//"):
            word, _, rest = line[1:].strip().partition(" ")
            try:
                if word not in self._commands:
                    raise UsageError(f"/{word} is not a command", "/help tells which there are.")
                self._commands[word](rest.strip())
            except KimistreamError as error:
                say(str(error))
            return
        self._talk.conversation.say(line.removeprefix("/") if line.startswith("//") else line)
        self.answer()

    # ---- answers

    def answer(self) -> None:
        """Answer the last message, and ask for the results of the tools that the answer calls."""
        finished = self._one_answer()
        while finished is not None and finished.reason == "tool_calls" and self._results(finished):
            finished = self._one_answer()

    def _one_answer(self) -> Finished | None:
        """One answer, shown as it comes; None if there was no room for it."""
        talk, model = self._talk, self._talk.model
        conversation = talk.conversation
        interrupted: KeyboardInterrupt | None = None
        view = AnswerView(model, quiet=self._quiet)
        try:
            with view:
                answer = conversation.answer(
                    talk.sampling, max_tokens=self._max_tokens, progress=view.progress
                )
                with closing(answer) as steps:
                    for step in steps:
                        view.show(step)
        except KeyboardInterrupt as error:
            interrupted = error
        except UsageError as error:  # the context is full
            conversation.undo()
            say(str(error))
            return None
        finished = conversation.finished
        if finished is not None and not self._quiet:
            for line in (ending(finished), view.figures()):
                if line:
                    say(line)
        if self._save_turns:
            talk.save()
        if interrupted is not None and not self._lines.interactive:
            raise interrupted
        return finished

    def _results(self, finished: Finished) -> bool:
        """Ask for the result of each call; False if the person would rather not give them."""
        conversation = self._talk.conversation
        calls = (finished.message or {}).get("tool_calls", [])
        results: list[tuple[str, str]] = []
        for call in calls:
            name = harmless(call["function"]["name"]).replace("\n", " ")
            try:
                text = self._lines.read(f"result of {name}> ")
            except KeyboardInterrupt:
                if not self._lines.interactive:
                    raise
                text = None
            if text is None:
                say("no result is given; say something else, or take the message back with /undo")
                return False
            results.append((call["id"], text))
        for call_id, text in results:
            conversation.tool_result(call_id, text)
        return True

    # ---- commands

    def _save(self, rest: str) -> None:
        path, nbytes = self._talk.save(usable_path("/save", rest) if rest else None)
        say(f"saved {path}: {format_size(nbytes)}")

    def _load(self, rest: str) -> None:
        if not rest:
            raise UsageError("/load needs a file, and none is named", "Write /load talk.session.")
        self._talk.load(usable_path("/load", rest))
        conversation = self._talk.conversation
        say(
            f"loaded {rest}: {len(conversation.messages)} messages, "
            f"{len(conversation.sequence.ids)} tokens; thinking {conversation.think}"
        )

    def _undo(self, rest: str) -> None:
        text = self._talk.conversation.undo()
        if text is None:
            raise UsageError("/undo: the conversation has no message to take back", "Say something first.")
        short = " ".join(text.split())
        say(f"took back: {short if len(short) <= 60 else short[:57] + '...'}")

    def _reset(self, rest: str) -> None:
        self._talk.conversation.reset()
        say("forgotten")

    def _think(self, rest: str) -> None:
        conversation = self._talk.conversation
        if not rest:
            say(f"thinking {conversation.think}")
            return
        word = checked_think(rest, "/think")
        if word != conversation.think and conversation.messages:
            say("the effort stands at the beginning of the prompt: the next answer reads all of it again")
        conversation.think = word
        say(f"thinking {word}")

    def _stats(self, rest: str) -> None:
        conversation = self._talk.conversation
        used = len(conversation.sequence.ids)
        seed = None if self._talk.sampling.greedy else self._talk.sampling.seed
        for line in stats_lines(self._talk.model, conversation.finished, used, seed):
            say(line)


def say(text: str) -> None:
    """Lines for the person, on stderr."""
    print(text, file=sys.stderr, flush=True)
