"""`kimistream chat`: a conversation, typed or piped.

Knows: the options of a chat, and how it begins and ends.
Does not know: what happens in between (chat_loop).
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from kimistream.cli.options import Also, FilePath, Whole, also_paths, at_least, checkpoint_path
from kimistream.cli.sampling import Sampling
from kimistream.cli.talk import Room, TalkOptions


def chat(
    checkpoint: str,
    /,
    *,
    talk: TalkOptions = TalkOptions(),  # noqa: B008  (frozen)
    sampling: Sampling = Sampling(),  # noqa: B008  (frozen)
    session: FilePath | None = None,
    max_tokens: Annotated[Whole | None, Parameter(name=["--max-tokens", "-n"])] = None,
    pack: FilePath | None = None,
    memory: str | None = None,
    context: Whole | None = None,
    threads: Whole | None = None,
    chunk: Whole | None = None,
    also: Also = None,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative=())] = False,
) -> None:
    """Hold a conversation, with thinking and tools, within a memory budget.

    Answers go to stdout; reasoning, progress and figures to stderr. When stdin is not a terminal, each of
    its lines is a message. /help tells the commands. Where no option says otherwise, tokens are chosen as
    the checkpoint recommends.

    Parameters
    ----------
    checkpoint
        A directory in Kimi K3's layout, or `demo` for the model embedded in the package.
    session
        Go on with the conversation in this file if it exists, and save it there after every turn.
    max_tokens
        How many tokens an answer has at most; by default what the context has room for.
    pack
        Read the dense weights from this file, which `kimistream pack` made of this checkpoint: faster, and
        bit for bit the same.
    memory
        The budget for the whole process, as 8GB or 1500MiB. By default what is free, minus a reserve.
    context
        The positions to plan for, all turns together; by default 4096 more than there are.
    threads
        Compute threads; by default the physical cores. The answers do not depend on it.
    chunk
        Prompt tokens in one pass; by default what the budget has room for. Nor on this.
    also
        A further directory, of another drive perhaps, that holds shards of the checkpoint; may be given again.
    quiet
        Neither reasoning, progress nor figures.
    """
    at_least("--max-tokens", max_tokens, 1)
    at_least("--context", context, 1)
    at_least("--threads", threads, 1)
    at_least("--chunk", chunk, 1)
    path = checkpoint_path(checkpoint)
    room = Room(memory, context, threads, chunk, pack, tuple(also_paths(also)))

    sampling.options()  # refuses bad values before the engine is loaded

    # all code is loaded before memory is planned: what it takes is counted
    from kimistream.cli.chat_loop import ChatLoop
    from kimistream.cli.line_input import open_input
    from kimistream.cli.opening import opened_talk

    lines = open_input()
    with opened_talk(
        path, talk, sampling, room, session=session, more=None, max_tokens=max_tokens, quiet=quiet
    ) as (opened, _):
        ChatLoop(opened, lines, quiet=quiet, max_tokens=max_tokens, save=True).run()
