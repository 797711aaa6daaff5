"""Random numbers that are looked up, not drawn in turn: one for each (seed, stream, place).

Knows: the counter-based generator and seeds.
Does not know: what is decided with the numbers.

No generator has a state that moves along, so a number does not depend on what was drawn before it: not on a
restart, on the company in a batch, or on drafts that were thrown away.
"""

from __future__ import annotations

import secrets

import numpy as np

SEEDS = 2**64
"""Seeds are 0 to SEEDS - 1."""
BLOCKS = 2**256


def new_seed() -> int:
    """A seed nobody knows yet; short enough to be typed again (32 bits)."""
    return secrets.randbits(32)


def random64(seed: int, place: int, stream: int = 0) -> int:
    """64 random bits for a place of a stream: the first word of one Philox block.

    Philox 4x64 with 10 rounds (Salmon et al., SC 2011, "Parallel random numbers: as easy as 1, 2, 3"), key
    (seed, stream), counter (place, 0, 0, 0). Integer arithmetic only, and NumPy guarantees the generator's
    output over its versions.
    """
    # NumPy counts up before it computes a block
    counter = (place - 1) % BLOCKS
    return int(np.random.Philox(key=seed | stream << 64, counter=counter).random_raw())
