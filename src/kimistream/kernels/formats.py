"""What kernels switch on: the stored forms of a matrix, and the gated activations.

Knows: small integers.
Does not know: where the matrices are.
"""

from __future__ import annotations

from enum import IntEnum

from kimistream.checkpoint.formats import WeightFormat

__all__ = ["Activation", "WeightFormat"]


class Activation(IntEnum):
    """Which gated activation joins `gate` and `up` (ARCHITECTURE section 7)."""

    SILU = 0
    SITU = 1
