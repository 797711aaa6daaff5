"""The weights of a packed band in registers: low bytes and looked-up high bytes, interleaved to words.

Knows: the 64 columns of a half unit in a band (see `band_bytes`), and their exact float32 values, even columns and
odd columns apart, as `decode` has them for the plain forms; where in them an escape is patched.
Does not know: what is summed.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from .band_bytes import UNIT
from .simd import FEAT, I8, I32, I64, VF, VI, call, const, load

BYTES = 64
VBYTES = ir.VectorType(I8, BYTES)
UNIT_GROUPS = 4
FLOATS_BYTES = UNIT * 4
"""Bytes of a row of a unit as float32."""


def pieces(b: Any, v: Any, count: int) -> list[Any]:
    """IR: a vector of bytes in pieces of `count`."""
    kind = ir.VectorType(I32, count)
    return [
        b.shuffle_vector(v, v, ir.Constant(kind, list(range(k, k + count))))
        for k in range(0, v.type.count, count)
    ]


def joined(b: Any, parts: list[Any]) -> Any:
    """IR: pieces one behind the other."""
    while len(parts) > 1:
        n = 2 * parts[0].type.count
        index = ir.Constant(ir.VectorType(I32, n), list(range(n)))
        parts = [b.shuffle_vector(parts[k], parts[k + 1], index) for k in range(0, len(parts), 2)]
    return parts[0]


class Table:
    """The 16 high bytes of a band at `p`, brought into the shape that the CPU looks bytes up in."""

    def __init__(self, b: Any, p: Any) -> None:
        self.pointer = p
        self.width, self.name = 1, ""
        for feature, width, name in (
            ("avx512bw", 64, "llvm.x86.avx512.pshuf.b.512"),
            ("avx2", 32, "llvm.x86.avx2.pshuf.b"),
            ("ssse3", 16, "llvm.x86.ssse3.pshuf.b.128"),
            ("neon", 16, "llvm.aarch64.neon.tbl1.v16i8"),
        ):
            if feature in FEAT and not self.name:
                self.width, self.name = width, name
        if self.name:
            sixteen = load(b, p, None, ir.VectorType(I8, 16))
            self.value = joined(b, [sixteen] * (self.width // 16))

    def looked_up(self, b: Any, codes: Any) -> Any:
        """IR: the high bytes of 64 codes 0..15."""
        if self.name:
            kind = ir.VectorType(I8, self.width)
            return joined(
                b, [call(b, self.name, kind, self.value, part) for part in pieces(b, codes, self.width)]
            )
        v = ir.Constant(VBYTES, ir.Undefined)  # any other CPU: one byte after the other
        for j in range(BYTES):
            code = b.zext(b.extract_element(codes, I32(j)), I64)
            v = b.insert_element(v, load(b, self.pointer, code, I8), I32(j))
        return v


def half_words(b: Any, table: Table, row: Any, half: int) -> list[Any]:
    """IR: the bfloat16 words of half `half` (0 or 1) of the row of a unit at `row`: two groups of 32, in order."""
    low = load(b, row, I64(BYTES * half), VBYTES)
    codes = load(b, row, I64(UNIT), VBYTES)
    fifteen, four = (ir.Constant(VBYTES, [n] * BYTES) for n in (15, 4))
    high = table.looked_up(b, b.lshr(codes, four) if half else b.and_(codes, fifteen))
    groups = []
    for upper in (0, 8):
        places = [lane + upper + j for lane in range(0, BYTES, 16) for j in range(8)]
        order = [index for place in places for index in (place, place + BYTES)]
        groups.append(b.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, BYTES), order)))
    return groups


def half_unit(b: Any, table: Table, row: Any, half: int) -> list[tuple[Any, Any]]:
    """IR: (even, odd) of the two groups of `half_words`, as float32."""
    groups = []
    for words in half_words(b, table, row, half):
        pairs = b.bitcast(words, VI)
        even, odd = b.shl(pairs, const(16)), b.and_(pairs, const(0xFFFF0000))
        groups.append((b.bitcast(even, VF), b.bitcast(odd, VF)))
    return groups


def float_of_place(b: Any, place: Any) -> Any:
    """IR: where among the floats of a unit's row (groups of 16 even, then 16 odd columns) a place 0..127 is."""

    def bits(mask: int, shift: int) -> Any:
        part = b.and_(place, I64(mask))
        return b.shl(part, I64(shift)) if shift > 0 else b.lshr(part, I64(-shift))

    # 64: two groups; 48: four lanes; 8: the other group; 6: a lane; 1: the odd ones
    parts = [bits(64, 0), bits(48, -2), bits(8, 2), bits(6, -1), bits(1, 4)]
    total = parts[0]
    for part in parts[1:]:
        total = b.or_(total, part)
    return total


def entry_at(b: Any, escapes: Any, i: Any) -> Any:
    """IR: escape number `i` of a list, as int64."""
    return b.zext(load(b, escapes, b.shl(i, I64(2)), I32), I64)


def unit_of(b: Any, entry: Any) -> Any:
    """IR: the unit an escape is in."""
    return b.and_(b.lshr(entry, I64(9)), I64(0x7FFF))


def row_of(b: Any, entry: Any) -> Any:
    """IR: the row of the quad an escape is in."""
    return b.and_(b.lshr(entry, I64(7)), I64(3))


def patch(b: Any, floats: Any, entry: Any) -> None:
    """IR: write an escape's high byte over that of its place among the decoded floats of its row's unit."""
    at = b.or_(b.shl(float_of_place(b, b.and_(entry, I64(127))), I64(2)), I64(3))
    high = b.trunc(b.lshr(entry, I64(24)), I8)
    b.store(high, b.gep(floats, [at], source_etype=I8), align=1)
