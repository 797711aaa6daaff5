"""A checkpoint opened for work: the plan made, the memory taken, the threads running.

Knows: how the parts are sized, put together and taken apart again.
Does not know: what a pass computes (model), or what a person typed (cli).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any

from kimistream.budget import Available, current_rss, default_budget, parse_size
from kimistream.checkpoint.pack import Pack
from kimistream.checkpoint.table import Checkpoint
from kimistream.engine.answer import Finished
from kimistream.engine.conversation import Conversation, Step
from kimistream.engine.generate import Choose, Ints, LogitsSink, as_ids, generate, greedy
from kimistream.engine.options import SamplingOptions
from kimistream.engine.records import Meter, TokenRecord
from kimistream.engine.sequence import LiveSequence
from kimistream.engine.sizes import Request, Sized, Tuning, size_up
from kimistream.engine.text import try_tokenizer
from kimistream.errors import TextError, UsageError
from kimistream.kernels.formats import WeightFormat
from kimistream.model.band_check import BandCheck
from kimistream.model.embedding import Embedding
from kimistream.model.forward import Forward, Progress
from kimistream.model.state import SequenceState
from kimistream.model.vectors import Vectors
from kimistream.model.workspace import Workspace
from kimistream.stream.expert_store import ExpertStore
from kimistream.stream.plan import Plan, least_budget, make_plan
from kimistream.stream.reader import Reader
from kimistream.stream.tape import Tape
from kimistream.text.output import Event
from kimistream.text.tokenizer import Tokenizer

Note = Callable[[str], None]


class Model:
    """An open checkpoint. Use `Model.open`, and close it (or use it in a `with` statement).

    One thread computes: call a model from one thread at a time.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        pack: Pack | None,
        plan: Plan,
        budget_source: str,
        reader: Reader,
        tape: Tape,
        experts: ExpertStore | None,
        forward: Forward,
        context: int,
        snapshots: int,
        tokenizer: Tokenizer | None,
        closing: ExitStack,
    ) -> None:
        self.checkpoint = checkpoint
        self.pack = pack
        self.config = checkpoint.config
        self.plan = plan
        self.budget_source = budget_source
        self.reader = reader
        self.tape = tape
        self.experts = experts
        self.forward = forward
        self.context = context
        self.snapshots = snapshots
        self.tokenizer = tokenizer
        self.stop_ids = frozenset(checkpoint.config.eos_ids)
        self.touch_seconds = 0.0
        self._closing = closing

    @classmethod
    def open(
        cls,
        checkpoint: str | Path | Checkpoint,
        *,
        memory: int | str | None = None,
        context: int = 4096,
        threads: int | None = None,
        chunk: int | None = None,
        prompt: int | None = None,
        all_logits: bool = False,
        sequences: int = 1,
        snapshots: int = 0,
        text: Tokenizer | bool = True,
        also: Sequence[str | Path] = (),
        pack: str | Path | Pack | None = None,
        tuning: Tuning | None = None,
        note: Note | None = None,
        status: Note | None = None,
    ) -> Model:
        """Open a checkpoint directory within a memory budget.

        memory: bytes, or a size as "8GB"; the whole process counts. By default what this machine or
        container has free, minus a reserve. context: positions per sequence, prompt and answer together.
        chunk: rows of a prompt's pass (by default as many as there is room for, up to `prompt` or 256).
        all_logits: passes may want the logits of every row. sequences: how many states there will be;
        snapshots: how many earlier positions a sequence can go back to without computing it again (of
        Kimi K3 each takes 465 MB). text: the tokenizer to use, or whether to load the checkpoint's if it has one.
        pack: a file made of this checkpoint by `kimistream pack`, which the dense weights are then read from.
        note: receives lines worth keeping (direct reads refused); status: what is being done right now.

        Raises BudgetError with the least budget, CheckpointError, ConfigError, PackError, UsageError.
        """
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint.open(checkpoint, also=also)
        opened = open_pack(pack, checkpoint)
        budget, source = resolve_budget(memory)
        prepare_kernels(threads, note, status, budget)
        tokenizer = _tokenizer(checkpoint, text)
        request = Request(context, chunk, prompt, all_logits, sequences, snapshots)
        sized = size_up(checkpoint, request, budget, tuning or Tuning(), opened)
        plan = sized.tuned(make_plan(sized.needs, budget))
        return cls._build(checkpoint, opened, sized, plan, source, request, tokenizer, note)

    @classmethod
    def _build(
        cls,
        checkpoint: Checkpoint,
        pack: Pack | None,
        sized: Sized,
        plan: Plan,
        source: str,
        request: Request,
        tokenizer: Tokenizer | None,
        note: Note | None,
    ) -> Model:
        with ExitStack() as stack:
            paths = [file.path for file in checkpoint.files] + ([pack.path] if pack is not None else [])
            reader = Reader(paths, notice=note, **sized.reader_options)
            stack.callback(reader.close)
            check = BandCheck(sized.score, pack, checkpoint.directory) if pack is not None else None
            tape = Tape(reader, sized.blocks, plan.ring, plan.pinned, check=check)
            stack.callback(tape.close)
            runs = {layer: checkpoint.experts(layer) for layer in checkpoint.config.moe_layers}
            experts = ExpertStore(reader, runs, plan.slots, guesses=plan.guesses) if runs else None
            if experts is not None:
                stack.callback(experts.close)
            touched = tape.touch(pinned=True) + (experts.touch() if experts is not None else 0.0)
            fmt = runs[min(runs)].format if runs else WeightFormat.BF16
            vectors, workspace = (
                Vectors(checkpoint.config, pack or checkpoint),
                Workspace(checkpoint.config, plan.rows),
            )
            stack.callback(workspace.close)  # a closed model that is still held holds nothing large
            stack.callback(vectors.close)
            forward = Forward(
                checkpoint,
                sized.score,
                vectors,
                WeightFormat(fmt),
                Embedding(checkpoint, reader),
                tape,
                experts,
                workspace,
            )
            model = cls(
                checkpoint,
                pack,
                plan,
                source,
                reader,
                tape,
                experts,
                forward,
                request.context,
                request.snapshots,
                tokenizer,
                stack.pop_all(),
            )
            model.touch_seconds = touched
            return model

    @staticmethod
    def least_budget(
        checkpoint: str | Path | Checkpoint,
        *,
        context: int = 4096,
        chunk: int | None = None,
        prompt: int | None = None,
        all_logits: bool = False,
        sequences: int = 1,
        snapshots: int = 0,
        text: Tokenizer | bool = True,
        pack: str | Path | Pack | None = None,
        tuning: Tuning | None = None,
    ) -> int:
        """Bytes of the least budget that `open` accepts for these options."""
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint.open(checkpoint)
        opened = open_pack(pack, checkpoint)
        prepare_kernels()
        _held = _tokenizer(checkpoint, text)
        request = Request(context, chunk, prompt, all_logits, sequences, snapshots)
        return least_budget(size_up(checkpoint, request, 0, tuning or Tuning(), opened).needs)

    def new_state(self, context: int | None = None) -> SequenceState:
        """An empty sequence with room for `context` positions (by default the model's)."""
        return SequenceState(self.config, context if context is not None else self.context)

    def new_sequence(self) -> LiveSequence:
        """An empty sequence that can go back to as many snapshots as are planned."""
        return LiveSequence(self.new_state(), self.snapshots)

    def need_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises TextError where there is none."""
        if self.tokenizer is None:
            _, reason = try_tokenizer(self.checkpoint.directory, self.config)
            raise TextError(
                f"text needs the checkpoint's tokenizer: {reason or 'it was not loaded'}",
                "Use ids, or fetch the tokenizer's files.",
            )
        return self.tokenizer

    def meter(self) -> Meter:
        """Measures what stretches of work cost."""
        return Meter(self.reader, self.tape, self.experts)

    def generate(
        self,
        prompt: Sequence[int] | Ints,
        *,
        max_tokens: int,
        state: SequenceState | None = None,
        choose: Choose = greedy,
        ignore_eos: bool = False,
        stop_ids: frozenset[int] | None = None,
        ended: Callable[[], bool] | None = None,
        progress: Callable[[int, int], Progress | None] | None = None,
        sink: LogitsSink | None = None,
    ) -> Iterator[TokenRecord]:
        """Continue `prompt` (token ids) with up to `max_tokens` tokens, greedily unless `choose` is given.

        state: the sequence to continue; a new one by default. stop_ids: tokens that end the answer, by
        default the checkpoint's end token; none with ignore_eos. ended: asked after each token whether to go
        on. sink: receives the logits float32
        `[n, vocab]` after every position, in order.
        """
        if max_tokens < 1:
            raise UsageError(f"max_tokens is {max_tokens}: must be 1 or more", "Give 64, say.")
        ids = as_ids(prompt, self.config.vocab_size)
        if state is None:
            state = self.new_state()
        stops = frozenset() if ignore_eos else self.stop_ids if stop_ids is None else stop_ids
        return generate(
            self.forward,
            state,
            ids,
            max_tokens=max_tokens,
            meter=self.meter(),
            chunk=self.plan.rows,
            choose=choose,
            stop_ids=stops,
            ended=ended,
            progress=progress,
            sink=sink,
        )

    def chat(
        self,
        messages: Sequence[Any],
        *,
        options: SamplingOptions | None = None,
        max_tokens: int | None = None,
        sequence: LiveSequence | None = None,
        **format: Any,
    ) -> Iterator[Event | Finished]:
        """Answer a conversation: `Reasoning`, `Content` and `Called` as they become certain, then `Finished`.

        messages: OpenAI-style. format: tools, think, response_format, tool_choice (see `Conversation`).
        options: greedy by default. sequence: from `new_sequence`; given again with a longer history, only
        what is new is computed. Raises TextError for messages that cannot be written, and UsageError.
        """
        talk = Conversation(self, messages=messages, sequence=sequence, **format)
        with closing(talk.answer(options, max_tokens=max_tokens)) as steps:
            for step in steps:
                if isinstance(step, Step):
                    yield from step.events
                else:
                    yield step

    def close(self) -> None:
        """Stop reading, end the threads, give the memory back."""
        self._closing.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_pack(pack: str | Path | Pack | None, checkpoint: Checkpoint) -> Pack | None:
    """The pack, known to have been made from the checkpoint. Raises PackError."""
    if isinstance(pack, Pack):
        pack.require(checkpoint)
        return pack
    return Pack.open(pack, checkpoint) if pack is not None else None


def resolve_budget(memory: int | str | None) -> tuple[int, str]:
    """Bytes of the budget, and where it comes from."""
    if memory is None:
        available: Available = default_budget()
        return available.nbytes, available.source
    if isinstance(memory, str):
        return parse_size(memory), "--memory"
    if memory < 1:
        raise UsageError(f"memory is {memory} bytes", "Give a number of bytes, or a size such as '8GB'.")
    return memory, "memory"


def _tokenizer(checkpoint: Checkpoint, text: Tokenizer | bool) -> Tokenizer | None:
    """Loaded before anything is sized up, because it takes memory too."""
    if isinstance(text, Tokenizer):
        return text
    return try_tokenizer(checkpoint.directory, checkpoint.config)[0] if text else None


def prepare_kernels(
    threads: int | None = None,
    note: Note | None = None,
    status: Note | None = None,
    budget: int | None = None,
) -> None:
    """Compile or load all kernels, saying so when it takes long.

    They are compiled by other processes, as many at a time as there are compute threads and as fit into `budget`
    (bytes) beside this one; at least one.
    """
    import kimistream.kernels.all  # noqa: F401  (declares every kernel)
    from kimistream.kernels import compiling, runtime

    if threads is not None:
        runtime.set_threads(threads)

    def progress(done: int, total: int) -> None:
        if status is not None:
            status(f"compiling kernels {done}/{total}" if done < total else "")

    if not runtime.is_cached():
        if note is not None:
            note("compiling the kernels for this CPU, once (about half a minute)")
        room = runtime.threads()
        if budget is not None:
            room = min(room, (budget - current_rss()) // compiling.PROCESS_BYTES)
        compiling.compile_apart(max(1, room), progress)
    runtime.compile_all(progress)
