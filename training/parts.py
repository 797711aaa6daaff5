"""The two parts of a step and the processes that work on them.

Knows: memory that processes share, a helper process that answers calls. Does not know: what is computed.

A step's rows always come in PARTS parts, each computed by one thread on its own, and what they give is added
in order. So the sums are the same whether two processes work side by side or one does both, and a run gives
the same bytes on one core as on two.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from typing import Any

import torch

PARTS = 2
LINE = 16
"""Numbers in a line of the cache; a tensor begins with one."""


def shared_like(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Zeroed float32 tensors by name, in one block of memory that forked processes have in common."""
    sizes = {name: torch.Size(size).numel() for name, size in shapes.items()}
    rooms = [-(-size // LINE) * LINE for size in sizes.values()]
    block = torch.zeros(sum(rooms)).share_memory_()
    pieces = zip(shapes.items(), block.split(rooms), strict=True)
    return {name: piece[: sizes[name]].view(size) for (name, size), piece in pieces}


class Crew:
    """Calls `work(part, *arguments)` for every part, in as many processes as are wanted (1 or PARTS).

    The helper is forked, so make the crew before anything has started threads. It keeps what `work` has
    become in it; `work` hands large results over in shared memory.
    """

    def __init__(self, work: Callable[..., Any], processes: int) -> None:
        self._work = work
        self._helper = None
        if processes > 1:
            context = multiprocessing.get_context("fork")
            self._pipe, theirs = context.Pipe()
            self._helper = context.Process(target=self._serve, args=(theirs,), daemon=True)
            self._helper.start()
            theirs.close()

    def _serve(self, pipe) -> None:
        self._pipe.close()
        while True:
            try:
                arguments = pipe.recv()
            except (EOFError, OSError):  # the other process has ended
                return
            if arguments is None:
                return
            started = time.process_time()
            result = self._work(1, *arguments)
            pipe.send((result, time.process_time() - started))

    def call(self, *arguments: Any) -> tuple[list[Any], float, float]:
        """The parts' results, the CPU seconds of all processes and those of the busiest one."""
        started = time.process_time()
        if self._helper is None:
            results = [self._work(part, *arguments) for part in range(PARTS)]
            own = time.process_time() - started
            return results, own, own
        self._pipe.send(arguments)
        first = self._work(0, *arguments)
        own = time.process_time() - started
        second, other = self._pipe.recv()
        return [first, second], own + other, max(own, other)

    def close(self) -> None:
        if self._helper is not None:
            self._pipe.send(None)
            self._helper.join()
            self._pipe.close()
            self._helper = None
