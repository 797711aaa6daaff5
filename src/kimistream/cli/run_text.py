"""A plain continuation from checked options to the last token.

Knows: the order of the work: open, look at the session, plan, generate, save.
Does not know: the command line (run), or how tokens look (report).
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from kimistream.checkpoint.table import Checkpoint
from kimistream.cli.output import LogitsFile
from kimistream.cli.report import Printer
from kimistream.cli.sampling import describe, spell
from kimistream.cli.talk import Room
from kimistream.cli.text_session import TextSession
from kimistream.engine.generate import as_ids
from kimistream.engine.model import Model
from kimistream.engine.options import SamplingOptions
from kimistream.engine.plain import TextReader
from kimistream.engine.sampling import Sampler
from kimistream.engine.text import stop_ids, try_tokenizer
from kimistream.errors import TextError, UsageError

SESSION = "--session"
"""Where the text comes from when no prompt is given."""


def run_text(
    path: Path,
    source: str,
    text: str | None,
    numbers: list[int] | None,
    options: SamplingOptions,
    room: Room,
    *,
    max_tokens: int,
    session: Path | None,
    ignore_eos: bool,
    logits: Path | None,
    quiet: bool,
    json: bool,
) -> None:
    """Continue a text, or `numbers` (ids) where they are given; `source` names the option they came from."""
    started = time.perf_counter()
    printer = Printer(quiet=quiet, json=json)
    with ExitStack() as stack:
        stack.enter_context(printer.status)
        opened = Checkpoint.open(path, room.also)
        options.check_vocabulary(opened.config.vocab_size, spell)
        tokenizer, reason = try_tokenizer(path, opened.config)
        saved = TextSession(session, opened) if session is not None else None
        if source == SESSION and saved is not None:
            numbers = saved.ids()
            options = replace(options, seed=options.seed if options.seed is not None else saved.seed)
        options = options.with_seed()
        if tokenizer is None and (numbers is None or options.stop):
            what = source if numbers is None else "--stop"
            raise TextError(f"{what} needs the checkpoint's tokenizer: {reason}", "Or give --ids.")
        if numbers is None and tokenizer is not None:
            numbers = tokenizer.encode(text or "", special=True)
        tokens = as_ids(numbers or [], opened.config.vocab_size)
        positions = len(tokens) + max_tokens
        context = room.context
        if context is not None and context < positions:
            raise UsageError(
                f"--context {context}: the prompt's {len(tokens)} tokens and --max-tokens {max_tokens} "
                f"need {positions}",
                f"Give --context {positions} or more, or fewer --max-tokens.",
            )
        if context is None:
            context = max(positions, saved.count if saved is not None else 0)
        if saved is not None:
            saved.check_target(context)
        sink = None
        file = LogitsFile(logits, opened.config.vocab_size, positions) if logits else None
        if file is not None:
            stack.callback(lambda: file.close(keep=False))
            sink = file.append
        model = stack.enter_context(
            Model.open(
                opened,
                memory=room.memory,
                context=context,
                threads=room.threads,
                chunk=room.chunk,
                prompt=len(tokens),
                all_logits=file is not None,
                snapshots=0 if saved is None else 1,
                text=tokenizer if tokenizer is not None else False,
                pack=room.pack,
                note=printer.note,
                status=printer.doing,
            )
        )
        sequence = model.new_sequence()
        if saved is not None:
            saved.restore(sequence)
        kept = sequence.prepare(tokens.tolist())
        goes_on_at = saved.prompt if source == SESSION and saved is not None else len(tokens)
        sampler = Sampler(
            options,
            tokens[:goes_on_at],
            tokens[goes_on_at:].tolist(),
            vocab=opened.config.vocab_size,
            end_ids=frozenset() if ignore_eos else stop_ids(opened.config, tokenizer),
        )
        reader = TextReader(tokenizer, options) if tokenizer is not None else None
        printer.begin(model, len(tokens), kept, max_tokens, describe(options), time.perf_counter() - started)
        records = model.generate(
            tokens[kept:],
            max_tokens=max_tokens,
            state=sequence.state,
            choose=sampler,
            stop_ids=sampler.stop_ids,
            ended=lambda: reader is not None and reader.stop_string is not None,
            progress=printer.progress,
            sink=sink,
        )
        # of a text that goes on, the snapshot behind its prompt is worth more
        mark = saved is not None and source != SESSION
        count, stopped = 0, False
        try:
            for record in sequence.follow(records, mark=mark):
                count, stopped = count + 1, record.stop
                piece = None
                if reader is not None:
                    piece = "" if stopped else reader.feed(record.id)
                    if stopped or count == max_tokens:
                        piece += reader.finish()
                printer.token(record, piece, sampler.logprobs)
        except KeyboardInterrupt:
            if saved is not None:
                printer.note(saved.save(sequence, goes_on_at, options.seed, stopped=stopped))
            raise
        if file is not None:
            file.close(keep=True)
        stop_string = reader.stop_string if reader is not None else None
        printer.end(
            model,
            finish_reason="stop" if stopped or stop_string is not None else "length",
            stop_string=stop_string,
            seed=None if options.greedy else options.seed,
        )
        if saved is not None:
            printer.note(saved.save(sequence, goes_on_at, options.seed, stopped=stopped))
