"""The stored forms of numbers: those a safetensors header can name, and those a matrix may have here.

Knows: names, codes and widths.
Does not know: how a form is widened (kernels) or where it is stored.
"""

from __future__ import annotations

from enum import IntEnum


class WeightFormat(IntEnum):
    """How the weights of one matrix are stored; every form is widened exactly to float32.

    The codes are what kernels switch on. The first three are named as in a safetensors header.
    """

    BF16 = 0
    F32 = 1
    F16 = 2
    MXFP4 = 3
    """E2M1 codes, two to a byte, with one E8M0 scale for each 32 columns (ARCHITECTURE section 8)."""
    BF12 = 4
    """bfloat16 in about 12 bits, lossless; only inside the bands of a pack (kernels/bands.py)."""


WIDTH_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6,
    "F6_E3M2": 6, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits of one number, for each dtype name of the safetensors format."""

FLOATS = {"BF16": WeightFormat.BF16, "F32": WeightFormat.F32, "F16": WeightFormat.F16}
"""The dtypes a dense tensor may have (ARCHITECTURE section 2)."""
