"""The stored forms a matrix may have, as small integers that kernels switch on."""

from __future__ import annotations

from enum import IntEnum


class WeightFormat(IntEnum):
    """How the weights of one matrix are stored; every form is widened exactly to float32."""

    BF16 = 0
    F32 = 1
    F16 = 2
    MXFP4 = 3
    """E2M1 codes, two to a byte, with one E8M0 scale for each 32 columns (ARCHITECTURE section 8)."""


class Activation(IntEnum):
    """Which gated activation joins `gate` and `up` (ARCHITECTURE section 7)."""

    SILU = 0
    SITU = 1
