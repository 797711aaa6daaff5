"""Ctrl-C at hundreds of random points of a pass: afterwards every byte is still right and nothing is leaked."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kimistream.stream.blocks import Blocks
from kimistream.stream.expert_store import ExpertStore
from kimistream.stream.reader import Reader
from kimistream.stream.tape import Tape

from .conftest import Sample
from .test_expert_store import TORN, ask
from .test_tape import even_items, play

BytesAt = Callable[[int, int], bytes]


@pytest.fixture
def interrupts() -> Iterator[Callable[[float], None]]:
    """Sends a KeyboardInterrupt to this thread after some seconds (0: not any more).

    And again a little later: one that falls into a destructor is lost, as Python's are.
    """
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads change places as often as they can
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds, 0.05)
    signal.setitimer(signal.ITIMER_REAL, 0)
    sys.setswitchinterval(interval)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("nothing_leaks")
@pytest.mark.parametrize("pinned", [[1, 4, 9], range(10)])
def test_interrupted_anywhere_the_next_pass_is_right(
    sample: Sample, bytes_at: BytesAt, interrupts: Callable[[float], None], pinned: list[int]
) -> None:
    rng = random.Random(5)
    blocks = Blocks(even_items(10), 32768, head_start=8)
    end = time.monotonic() + 2.5
    with (
        Reader([sample.path, sample.path], threads=3, request_bytes=4096) as reader,
        Tape(reader, blocks, 0 if len(pinned) == 10 else 3, pinned) as tape,
        ExpertStore(reader, TORN, 7, guesses=3) as store,
    ):

        def one_pass(head: bool, more: bool) -> None:
            tape.begin(head, more)
            for item in range(10 if head else 8):
                play(tape, sample, bytes_at, [item])
                if item % 3 == 1:
                    layer = rng.choice((1, 2, 5))
                    store.hint(layer, np.array(rng.sample(range(24), 2), np.int32))
                    ask(store, sample, bytes_at, layer, sorted(rng.sample(range(24), rng.randint(1, 9))))
            tape.finish()

        while time.monotonic() < end:
            try:
                try:
                    interrupts(1e-5 + 0.01 * rng.random())
                    while True:
                        one_pass(rng.random() < 0.5, rng.random() < 0.7)
                finally:
                    interrupts(0)
            except KeyboardInterrupt:
                pass
        interrupts(0)
        one_pass(True, False)
