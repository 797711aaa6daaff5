"""How each stored form of a matrix becomes float32: one decoder for each form.

Knows: the bytes of a group of 32 columns in each stored form, and their exact float32 values, even columns
and odd columns apart (the order every sum is taken in).
Does not know: what is summed.

A new stored form is one more `Decoder` here, listed in `DECODERS`, and its two kernels in `rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from .formats import WeightFormat
from .simd import FEAT, I8, I32, I64, LANES, VB, VF, VH, VI, call, const, load, looked_up_at

GROUP = 32
"""Columns of a group: 16 even ones and 16 odd ones, one lane each."""

RUN = 4
"""Groups of a run: so many of MXFP4 fill a vector register."""

E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
"""The eight magnitudes of a 4-bit code; bit 3 is the sign (ARCHITECTURE section 8)."""


def scale_values() -> np.ndarray[Any, np.dtype[np.float32]]:
    """The 256 scales 2^(byte - 127) as float32; byte 255 is NaN."""
    values = np.ldexp(np.float64(1), np.arange(256) - 127).astype(np.float32)
    values[255] = np.nan
    return values


def scaled_codes() -> np.ndarray[Any, np.dtype[np.float32]]:
    """f32[256, 16]: the value of each code under each scale byte. Infinite where float32 ends."""
    codes = np.concatenate([E2M1, -E2M1])
    with np.errstate(over="ignore", invalid="ignore"):
        return (codes[None, :] * scale_values()[:, None]).astype(np.float32)


@dataclass(frozen=True)
class Decoder:
    """One stored form. `group(b, w, s)` builds the IR that gives (even, odd) of the group at pointers w, s."""

    group_bytes: int
    """Bytes of one group of 32 columns."""
    scale_bytes: int
    """Bytes of scale for one group (0: none)."""
    group: Callable[[Any, Any, Any], tuple[Any, Any]]
    run: Callable[[Any, Any, Any], Callable[[int], tuple[Any, Any]]] | None = None
    """The same for `RUN` groups at once, where that takes fewer instructions: run(b, w, s)(i) is group i's."""


def bf16_group(b: Any, w: Any, s: Any) -> tuple[Any, Any]:
    """bfloat16: the upper half of a float32; an even column is the lower half-word of a pair."""
    pairs = load(b, w, None, VI)
    return b.bitcast(b.shl(pairs, const(16)), VF), b.bitcast(b.and_(pairs, const(0xFFFF0000)), VF)


def half_lanes(b: Any, h: Any) -> Any:
    """IEEE half precision in the low half-words of an int32 vector -> float32, exactly."""
    if FEAT & {"f16c", "avx512f", "neon"}:
        return b.fpext(b.bitcast(b.trunc(h, VH), ir.VectorType(ir.HalfType(), LANES)), VF)
    magnitude = b.and_(h, const(0x7FFF))
    # The fields moved to float32's places are too small by 2^112; the product is exact, subnormals included.
    factor = ir.Constant(VF, [2.0**112] * LANES)
    bits = b.bitcast(b.fmul(b.bitcast(b.shl(magnitude, const(13)), VF), factor), VI)
    special = b.icmp_unsigned(">=", magnitude, const(0x7C00))
    bits = b.select(special, b.or_(b.shl(magnitude, const(13)), const(0x7F800000)), bits)
    return b.bitcast(b.or_(bits, b.shl(b.and_(h, const(0x8000)), const(16))), VF)


def f16_group(b: Any, w: Any, s: Any) -> tuple[Any, Any]:
    """IEEE half precision, two columns in each 32-bit word."""
    pairs = load(b, w, None, VI)
    return half_lanes(b, b.and_(pairs, const(0xFFFF))), half_lanes(b, b.lshr(pairs, const(16)))


def f32_group(b: Any, w: Any, s: Any) -> tuple[Any, Any]:
    """float32 in plain column order."""
    low, high = load(b, w, None, VF), load(b, w, I64(64), VF)
    even, odd = ([2 * i + k for i in range(LANES)] for k in (0, 1))
    return tuple(b.shuffle_vector(low, high, ir.Constant(VI, index)) for index in (even, odd))


def split_group(b: Any, w: Any, s: Any) -> tuple[Any, Any]:
    """float32 already split: 16 even columns, then 16 odd ones. What the others are unpacked to."""
    return load(b, w, None, VF), load(b, w, I64(64), VF)


def table(b: Any, name: str, values: np.ndarray[Any, Any]) -> Any:
    """IR: a pointer to constant bytes that are part of the compiled code."""
    data = bytearray(np.ascontiguousarray(values).tobytes())
    found = b.module.globals.get(name)
    if found is None:
        found = cgutils.global_constant(b.module, name, ir.Constant(ir.ArrayType(I8, len(data)), data))
        found.align = 64
    return b.bitcast(found, cgutils.voidptr_t)


def mxfp4_values(b: Any, scale: Any) -> Any:
    """IR: the pointer to the 16 values of the codes under a scale byte."""
    row = b.shl(b.zext(scale, I64), I64(6))
    return b.gep(table(b, "kimistream_mxfp4", scaled_codes()), [row], source_etype=I8)


def mxfp4_group(b: Any, w: Any, s: Any) -> tuple[Any, Any]:
    """E2M1 codes (the even column in the low nibble) under one E8M0 scale: a lookup in the scale's table."""
    values = mxfp4_values(b, load(b, s, None, I8))
    codes = b.zext(load(b, w, None, VB), VI)
    return looked_up_at(b, values, codes), looked_up_at(b, values, b.lshr(codes, const(4)))


def mxfp4_run(b: Any, w: Any, s: Any) -> Callable[[int], tuple[Any, Any]]:
    """Four groups with one load and one byte shuffle: lane j holds byte j of each, and a lookup minds 4 bits only."""
    bytes_64 = ir.VectorType(I8, 4 * LANES)
    order = ir.Constant(bytes_64, [i % 4 * LANES + i // 4 for i in range(4 * LANES)])
    stored = load(b, w, None, bytes_64)
    codes = b.bitcast(call(b, "llvm.x86.avx512.permvar.qi.512", bytes_64, stored, order), VI)
    scales = load(b, s, None, I32)

    def group(i: int) -> tuple[Any, Any]:
        values = load(b, mxfp4_values(b, b.trunc(b.lshr(scales, I32(8 * i)), I8)), None, VF)
        even, odd = (b.lshr(codes, const(8 * i + shift)) for shift in (0, 4))
        return tuple(call(b, "llvm.x86.avx512.permvar.sf.512", VF, values, c) for c in (even, odd))

    return group


DECODERS = {
    WeightFormat.BF16: Decoder(64, 0, bf16_group),
    WeightFormat.F32: Decoder(128, 0, f32_group),
    WeightFormat.F16: Decoder(64, 0, f16_group),
    WeightFormat.MXFP4: Decoder(16, 1, mxfp4_group, mxfp4_run if "avx512vbmi" in FEAT else None),
}
SPLIT = Decoder(128, 0, split_group)


def with_tail(b: Any, decoder: Decoder, w: Any, s: Any, tail_bytes: Any) -> tuple[Any, Any]:
    """IR: (even, odd) of a last group of which only `tail_bytes` bytes are stored; the rest counts as zero."""
    slot = cgutils.alloca_once(b, ir.ArrayType(I8, decoder.group_bytes))
    b.store(ir.Constant(ir.ArrayType(I8, decoder.group_bytes), None), slot)
    start = b.bitcast(slot, cgutils.voidptr_t)
    with cgutils.for_range(b, tail_bytes) as loop:
        b.store(load(b, w, loop.index, I8), b.gep(start, [loop.index], source_etype=I8))
    return decoder.group(b, start, s)
