"""`kimistream run`: a prompt in, tokens out.

Knows: the options of one run and the order in which they are checked.
Does not know: how tokens are computed (engine) or shown (report).
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kimistream.cli.options import Whole, at_least, checkpoint_path, exactly_one, prompt_ids, read_prompt_file
from kimistream.cli.output import LogitsFile
from kimistream.errors import TextError, UsageError


def run(
    checkpoint: str,
    /,
    *,
    prompt: str | None = None,
    prompt_file: str | None = None,
    ids: str | None = None,
    max_tokens: Annotated[Whole, Parameter(name=["--max-tokens", "-n"])] = 64,
    memory: str | None = None,
    context: Whole | None = None,
    threads: Whole | None = None,
    chunk: Whole | None = None,
    ignore_eos: Annotated[bool, Parameter(negative=())] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
    logits: Path | None = None,
) -> None:
    """Continue a prompt with a checkpoint, token by token, within a memory budget.

    Tokens go to stdout as they come; progress and the report go to stderr.

    Parameters
    ----------
    checkpoint
        A directory in Kimi K3's layout, or `demo` for the model embedded in the package.
    prompt
        The text to continue.
    prompt_file
        A UTF-8 file with the text to continue; `-` reads standard input.
    ids
        The token ids to continue, as 1008,10484,318; needs no tokenizer files.
    max_tokens
        How many tokens to generate at most.
    memory
        The budget for the whole process, as 8GB or 1500MiB. By default what is free, minus a reserve.
    context
        The positions to plan for; by default the prompt and --max-tokens.
    threads
        Compute threads; by default the physical cores. The answer does not depend on it.
    chunk
        Prompt tokens in one pass; by default what the budget has room for. Nor on this.
    ignore_eos
        Go on after the model's end tokens.
    quiet
        Neither progress nor report; errors only.
    json
        One JSON object per token on stdout, then one with the summary.
    logits
        Write the logits after each position to this .npy file: float32 [prompt + generated, vocab].
    """
    source = exactly_one({"--prompt": prompt, "--prompt-file": prompt_file, "--ids": ids})
    at_least("--max-tokens", max_tokens, 1)
    at_least("--context", context, 1)
    at_least("--threads", threads, 1)
    at_least("--chunk", chunk, 1)
    numbers = prompt_ids(ids) if ids is not None else None
    text = read_prompt_file(prompt_file) if prompt_file is not None else prompt
    path = checkpoint_path(checkpoint)
    started = time.perf_counter()

    # the engine loads compiled kernels: imported only once the options are known to be good
    from kimistream.checkpoint.table import Checkpoint
    from kimistream.cli.report import Printer
    from kimistream.engine.generate import as_ids
    from kimistream.engine.model import Model
    from kimistream.engine.text import stop_ids, try_tokenizer

    printer = Printer(quiet=quiet, json=json)
    with ExitStack() as stack:
        stack.enter_context(printer.status)
        opened = Checkpoint.open(path)
        tokenizer, reason = try_tokenizer(path, opened.config)
        if numbers is None:
            if tokenizer is None:
                raise TextError(f"{source} needs the checkpoint's tokenizer: {reason}", "Or give --ids.")
            numbers = tokenizer.encode(text or "", special=True)
        tokens = as_ids(numbers, opened.config.vocab_size)
        positions = len(tokens) + max_tokens
        if context is not None and context < positions:
            raise UsageError(
                f"--context {context}: the prompt's {len(tokens)} tokens and --max-tokens {max_tokens} "
                f"need {positions}"
            )
        sink = None
        file = LogitsFile(logits, opened.config.vocab_size, positions) if logits else None
        if file is not None:
            stack.callback(lambda: file.close(keep=False))
            sink = file.append
        model = stack.enter_context(
            Model.open(
                opened,
                memory=memory,
                context=context if context is not None else positions,
                threads=threads,
                chunk=chunk,
                prompt=len(tokens),
                all_logits=file is not None,
                note=printer.note,
                status=printer.doing,
            )
        )
        printer.begin(model, len(tokens), max_tokens, tokenizer, time.perf_counter() - started)
        for record in model.generate(
            tokens,
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
            stop_ids=stop_ids(opened.config, tokenizer),
            progress=printer.progress,
            sink=sink,
        ):
            printer.token(record)
        if file is not None:
            file.close(keep=True)
        printer.end(model)
