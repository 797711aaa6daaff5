"""`kimistream run`: a prompt in, tokens out.

Knows: the options of one run and the order in which they are checked.
Does not know: what is done with them (run_text, run_chat).
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from kimistream.cli.options import (
    Also,
    FilePath,
    Whole,
    also_paths,
    at_least,
    checkpoint_path,
    exactly_one,
    prompt_ids,
    read_prompt_file,
)
from kimistream.cli.sampling import Sampling
from kimistream.cli.talk import Room, TalkOptions
from kimistream.errors import UsageError

DEFAULT_TOKENS = 64


def run(
    checkpoint: str,
    /,
    *,
    prompt: str | None = None,
    prompt_file: str | None = None,
    ids: str | None = None,
    chat: Annotated[bool, Parameter(negative=())] = False,
    talk: TalkOptions = TalkOptions(),  # noqa: B008  (frozen)
    sampling: Sampling = Sampling(),  # noqa: B008  (frozen)
    max_tokens: Annotated[Whole | None, Parameter(name=["--max-tokens", "-n"])] = None,
    session: FilePath | None = None,
    pack: FilePath | None = None,
    memory: str | None = None,
    context: Whole | None = None,
    threads: Whole | None = None,
    chunk: Whole | None = None,
    also: Also = None,
    ignore_eos: Annotated[bool, Parameter(negative=())] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
    logprobs: Whole | None = None,
    logits: FilePath | None = None,
) -> None:
    """Continue a prompt with a checkpoint, token by token, within a memory budget.

    Tokens go to stdout as they come; progress and the report go to stderr. With --chat the prompt is a
    message, and its answer goes to stdout, the reasoning before it to stderr.

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
    chat
        The prompt is a user's message, in the format the model was trained on. Where no option says
        otherwise, tokens are chosen as the checkpoint recommends.
    max_tokens
        How many tokens to generate at most: 64 by default, with --chat what the context has room for.
    session
        Save the tokens and their state to this file at the end. If it exists, what the prompt has in
        common with it is not computed again; without a prompt, its text is continued.
    pack
        Read the dense weights from this file, which `kimistream pack` made of this checkpoint: faster, and
        bit for bit the same.
    memory
        The budget for the whole process, as 8GB or 1500MiB. By default what is free, minus a reserve.
    context
        The positions to plan for; by default the prompt and --max-tokens, with --chat 4096 more than the
        conversation has.
    threads
        Compute threads; by default the physical cores. The answer does not depend on it.
    chunk
        Prompt tokens in one pass; by default what the budget has room for. Nor on this.
    also
        A further directory, of another drive perhaps, that holds shards of the checkpoint; may be given again.
    ignore_eos
        Go on after the model's end tokens.
    quiet
        Neither progress nor report; errors only.
    json
        One JSON object per token on stdout, then one with the summary; with --chat one with the message.
    logprobs
        With --json: the log probability of each token, and this many of the most likely ones.
    logits
        Write the logits after each position to this .npy file: float32 [prompt + generated, vocab].
    """
    given: dict[str, object] = {"--prompt": prompt, "--prompt-file": prompt_file, "--ids": ids}
    if chat:
        _refuse(
            "--chat", {"--ids": ids, "--logits": logits, "--logprobs": logprobs, "--ignore-eos": ignore_eos}
        )
    elif session is not None and logits is not None:
        raise UsageError(
            "--logits has those of every position, and --session leaves out what it knows",
            "Give one of them.",
        )
    elif words := talk.given():
        raise UsageError(f"{words[0]} needs --chat", f"Add --chat, or leave {words[0]} out.")
    elif logprobs is not None and not json:
        raise UsageError("--logprobs needs --json", "Add --json, or leave --logprobs out.")
    at_least("--max-tokens", max_tokens, 1)
    at_least("--context", context, 1)
    at_least("--threads", threads, 1)
    at_least("--chunk", chunk, 1)
    goes_on = session is not None and not chat and all(value is None for value in given.values())
    source = "--session" if goes_on else exactly_one(given)
    numbers = prompt_ids(ids) if ids is not None else None
    text = read_prompt_file(prompt_file) if prompt_file is not None else prompt
    path = checkpoint_path(checkpoint)
    room = Room(memory, context, threads, chunk, pack, tuple(also_paths(also)))
    if chat:
        sampling.options()
        from kimistream.cli.run_chat import run_chat

        run_chat(
            path,
            text or "",
            talk,
            sampling,
            room,
            session=session,
            max_tokens=max_tokens,
            quiet=quiet,
            json=json,
        )
        return
    options = sampling.options(logprobs=logprobs)

    # the engine loads compiled kernels: imported only once the options are known to be good
    from kimistream.cli.run_text import run_text

    run_text(
        path,
        source,
        text,
        numbers,
        options,
        room,
        max_tokens=max_tokens if max_tokens is not None else DEFAULT_TOKENS,
        session=session,
        ignore_eos=ignore_eos,
        logits=logits,
        quiet=quiet,
        json=json,
    )


def _refuse(with_option: str, given: dict[str, object]) -> None:
    """Refuse options that make no sense beside another."""
    for option, value in given.items():
        if value is not None and value is not False:
            raise UsageError(f"{option} cannot be used with {with_option}", "Leave one of them out.")
