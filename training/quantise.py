"""Weights as they will be stored: bf16 for dense matrices, MXFP4 for routed experts.

Knows: both formats (ARCHITECTURE section 8) and their bytes. Does not know: the model.

Training computes with the stored values and passes their gradient straight on to the float32 masters, so
the exported checkpoint computes what was trained.
"""

from __future__ import annotations

import torch

GROUP = 32
MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_EDGES = (MAGNITUDES[1:] + MAGNITUDES[:-1]) / 2


def to_bf16(weight: torch.Tensor) -> torch.Tensor:
    """The nearest bf16 numbers, as float32."""
    return weight.to(torch.bfloat16).to(torch.float32)


def _scales(groups: torch.Tensor) -> torch.Tensor:
    """Exponent (int32) of each group `[..., GROUP]`: the least power of two that keeps all within 6."""
    largest = groups.abs().amax(-1).clamp_min(2.0**-100)
    mantissa, exponent = torch.frexp(largest / 6.0)
    # frexp's mantissa is in [0.5, 1): exactly 0.5 is a power of two and needs no rounding up
    return torch.where(mantissa == 0.5, exponent - 1, exponent).to(torch.int32)


def quantise_mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (uint8, one per number, bit 3 the sign) and scale bytes (uint8 `[..., in / 32]`) of `[..., in]`."""
    groups = weight.unflatten(-1, (-1, GROUP))
    exponent = _scales(groups)
    scaled = torch.ldexp(groups, -exponent[..., None])
    codes = torch.bucketize(scaled.abs(), _EDGES)
    codes = codes + 8 * (scaled < 0)
    return codes.to(torch.uint8).flatten(-2), (exponent + 127).to(torch.uint8)


def dequantise_mxfp4(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The float32 numbers behind `quantise_mxfp4`'s result."""
    table = torch.cat((MAGNITUDES, -MAGNITUDES))
    groups = table[codes.long()].unflatten(-1, (-1, GROUP))
    return torch.ldexp(groups, scales.to(torch.int32)[..., None] - 127).flatten(-2)


def to_mxfp4(weight: torch.Tensor) -> torch.Tensor:
    """The nearest MXFP4 numbers, as float32 (`dequantise_mxfp4(*quantise_mxfp4(weight))`, faster)."""
    groups = weight.unflatten(-1, (-1, GROUP))
    exponent = _scales(groups)[..., None]
    scale = torch.ldexp(torch.ones(exponent.shape), exponent)
    scaled = groups / scale
    size = scaled.abs()
    # steps of 0.5 below 2, of 1 below 4, of 2 above
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    half_down = torch.ceil(size / step - 0.5) * step  # ties as bucketize puts them: to the lower one
    return (torch.copysign(half_down, scaled) * scale).flatten(-2)


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """uint8 `[..., in / 2]`: the even column is the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)
