"""A conversation: messages in, an answer out, and as little computed again as the format allows.

Knows: the history, how it is rendered for the next answer, and what a broken off answer leaves behind.
Does not know: what a token costs or how it is chosen (generate, sampling), or who is talking (cli, server).

Every prompt is rendered anew from the messages, and the state is used as far as its ids are an exact prefix of
the prompt's (`LiveSequence.prepare`). They are not when the model wrote something in other tokens than the
tokenizer would, when the thinking effort changes (it stands at the beginning), or when a message was taken
back. For those cases a snapshot is kept of where the turn began.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimistream.engine.answer import AnswerReader, Finished, Reason, Usage
from kimistream.engine.generate import LogitsSink, as_ids, prefill
from kimistream.engine.logprobs import TokenLogprobs
from kimistream.engine.options import SamplingOptions
from kimistream.engine.records import TokenRecord
from kimistream.engine.sampling import Sampler
from kimistream.engine.sequence import LiveSequence
from kimistream.engine.session import common_prefix
from kimistream.engine.text import stop_ids
from kimistream.engine.thinking import OFF, checked_think
from kimistream.errors import UsageError
from kimistream.model.forward import Progress
from kimistream.text.chat import encode_chat, strict_messages
from kimistream.text.output import Event
from kimistream.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from kimistream.engine.model import Model

Watch = Callable[[int, int], Progress | None]


@dataclass(frozen=True, slots=True)
class Step:
    """One token of an answer, and the events that became certain with it."""

    record: TokenRecord
    events: list[Event]
    logprobs: TokenLogprobs | None = None


class Conversation:
    """A history of messages, and the sequence that holds its state.

    messages: OpenAI-style; tools: a list of declarations; think: see THINK; response_format, tool_choice: as
    in the OpenAI API. Any of them may be changed between two answers; the history is `messages`.
    """

    def __init__(
        self,
        model: Model,
        *,
        messages: Sequence[Any] = (),
        tools: Sequence[Any] | None = None,
        think: str = "max",
        response_format: object = None,
        tool_choice: object = None,
        sequence: LiveSequence | None = None,
    ) -> None:
        self._model = model
        self.tokenizer: Tokenizer = model.need_tokenizer()
        self.messages: list[Any] = list(strict_messages(messages))
        self.tools = list(tools) if tools else None
        self.think = checked_think(think)
        self.response_format = response_format
        self.tool_choice = tool_choice
        self.sequence = sequence if sequence is not None else model.new_sequence()
        self.finished: Finished | None = None
        """How the last answer ended; also after an interrupt."""

    def say(self, text: str) -> None:
        """Add a message of the user."""
        self.messages.append({"role": "user", "content": text})

    def tool_result(self, call_id: str, text: str) -> None:
        """Add the result of a tool call of the last answer."""
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def undo(self) -> str | None:
        """Take back the last message of the user and all that followed; its text, or None if there is none."""
        for at in range(len(self.messages) - 1, -1, -1):
            if self.messages[at].get("role") == "user":
                text = self.messages[at].get("content")
                del self.messages[at:]
                return text if isinstance(text, str) else ""
        return None

    def reset(self) -> None:
        """Take back everything but the system's messages at the beginning."""
        begin = 0
        while begin < len(self.messages) and self.messages[begin].get("role") == "system":
            begin += 1
        del self.messages[begin:]

    def ids(self) -> list[int]:
        """The prompt of the next answer. Raises TextError for messages that cannot be written."""
        return prompt_ids(
            self.tokenizer,
            self.messages,
            tools=self.tools,
            think=self.think,
            tool_choice=self.tool_choice,
            response_format=self.response_format,
        )

    def answer(
        self,
        options: SamplingOptions | None = None,
        *,
        max_tokens: int | None = None,
        progress: Watch | None = None,
        sink: LogitsSink | None = None,
    ) -> Generator[Step | Finished]:
        """Answer the last message, token by token; the last thing that comes is `Finished`.

        options: greedy by default. max_tokens: by default what the context has room for. progress, sink: as
        in `Model.generate`; the sink receives the logits of those positions that are computed now.

        An iterator that is closed early, or an interrupt, leaves the partial answer in the history. Raises
        UsageError when the context is full.
        """
        options = options if options is not None else SamplingOptions()
        model, sequence, ids = self._model, self.sequence, self.ids()
        limit = self._limit(len(ids), max_tokens if max_tokens is not None else options.max_tokens)
        kept = sequence.prepare(ids)
        ends = stop_ids(model.config, self.tokenizer)
        sampler = Sampler(options, ids, vocab=model.config.vocab_size, end_ids=ends)
        thinking = self.think != OFF
        calls = bool(self.tools) and self.tool_choice != "none"
        reader = AnswerReader(self.tokenizer, sampler.options, thinking=thinking, calls=calls)
        count = 0
        reason: Reason = "interrupted"
        self.finished = None
        begin = kept if sink is not None else self._turn_start(ids, kept)
        try:
            if begin == kept:
                sequence.mark()
            records = model.generate(
                ids[begin:],
                max_tokens=limit,
                state=sequence.state,
                choose=sampler,
                stop_ids=sampler.stop_ids,
                ended=lambda: reader.done,
                progress=progress,
                sink=sink,
            )
            records = self._after(ids[kept:begin], records, progress)
            # a first turn has no turn before it to go back to; the place behind its prompt is the next best
            spare = begin == kept and len(sequence.snapshots) < sequence.most
            with closing(sequence.follow(records, mark=spare)) as steps:
                for record in steps:
                    count += 1
                    events = [] if record.stop else reader.feed(record.id)
                    last = record.stop or reader.done or count >= limit
                    if last:
                        events += reader.finish()
                        reason = reader.reason(cut=not record.stop)
                    yield Step(record, events, sampler.logprobs)
        finally:
            # also when it is broken off: what came of the answer stays in the history
            reader.finish()
            message = reader.message(self._calls_so_far()) if count else None
            if message is not None:
                self.messages.append(message)
            usage = Usage(len(ids), kept, count)
            self.finished = Finished(reason, usage, message, sampler.seed, reader.stop_string)
        yield self.finished

    def _limit(self, prompt: int, max_tokens: int | None) -> int:
        """How many tokens the answer may have; the last one needs no place in the context."""
        room = self._model.context - prompt + 1
        if room < 1:
            raise UsageError(
                f"the conversation has {prompt} tokens, and the context {self._model.context} positions",
                "Give a larger --context, take messages back, or begin again.",
            )
        return room if max_tokens is None else min(room, max_tokens)

    def _turn_start(self, ids: list[int], kept: int) -> int:
        """Where to stop once for a snapshot while the prompt is computed; `kept` if it is not worth a pass.

        It is when much of the history has to be computed again, so that the next time it need not be.
        """
        rows = self._model.plan.rows
        if not self.sequence.most or len(ids) - kept <= rows:
            return kept
        old = len(self.messages)
        while old and self.messages[old - 1].get("role") in ("user", "tool"):
            old -= 1
        history = prompt_ids(
            self.tokenizer,
            self.messages[:old],
            tools=self.tools,
            think=self.think,
            add_generation_prompt=False,
        )
        begin = common_prefix(history, ids)
        return begin if begin - kept > rows // 2 else kept

    def _after(
        self, front: list[int], records: Iterator[TokenRecord], progress: Watch | None
    ) -> Iterator[TokenRecord]:
        """The records, once the front of the prompt is computed and marked."""
        if front:
            model, state = self._model, self.sequence.state
            ids = as_ids(front, model.config.vocab_size)
            prefill(
                model.forward,
                state,
                ids,
                chunk=model.plan.rows,
                wanted="none",
                more=True,
                progress=progress,
            )
            self.sequence.mark()
        yield from records

    def _calls_so_far(self) -> int:
        return sum(len(message.get("tool_calls") or ()) for message in self.messages)


def prompt_ids(
    tokenizer: Tokenizer, messages: Sequence[Any], *, think: str, tools: Any = None, **options: Any
) -> list[int]:
    """The ids of a prompt; options as in `text.chat.render`. Raises TextError."""
    return encode_chat(
        tokenizer,
        messages,
        tools=tools,
        thinking=think != OFF,
        thinking_effort=None if think == OFF else think,
        **options,
    )
