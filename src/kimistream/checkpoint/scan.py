"""A look at the numbers of a shard as its bytes go by: NaN, infinity, scale 255, zeros where none belong.

Knows: which bytes belong to which tensor, and what no weight may be.
Does not know: where the bytes come from; it is fed pieces of the file in order.

It looks at pieces that are still in the CPU's cache. 93 % of the released bytes are MXFP4 codes, of which every
value is a number and only zeros are looked for; for the rest it is handed a fast way to find the largest number.
Then the look costs a few percent of the hashing beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.header import Header

PAGE = 4096
"""A run of zeros of this size, on its own bounds in the file, is what a lost page looks like."""

_INFINITY: dict[str, tuple[int, int]] = {
    "BF16": (2, 0x7F80),
    "F16": (2, 0x7C00),
    "F32": (4, 0x7F800000),
    "F64": (8, 0x7FF0000000000000),
}
"""Of each type with NaN and infinity: its bytes, and the bits of plus infinity.

Read as integers without the sign, all NaNs and infinities are the largest numbers: one maximum tells.
"""

ZERO_PAGE = 1 << 32
Glance = Callable[[npt.NDArray[np.uint8], int], int]
"""The largest of a piece's numbers of 2 or 4 bytes (0: not asked) as integers without the sign, and `ZERO_PAGE`
added when some page begins with eight zero bytes."""


def glance(piece: npt.NDArray[np.uint8], width: int) -> int:
    """`Glance` without compiled code: uint8 `[n]` of whole pages."""
    zero = ZERO_PAGE if (piece.view(np.int64)[:: PAGE // 8] == 0).any() else 0
    if not width:
        return zero
    # negative numbers are the largest unsigned ones, positive ones the largest signed
    unsigned, signed = int(piece.view(f"u{width}").max()), int(piece.view(f"i{width}").max())
    return zero + max(signed, unsigned - (1 << (8 * width - 1)))


_MAY_BE_ZERO = ("bias", "A_log", ".layers.0.self_attention_res_proj.weight")
"""Ends of names of tensors that may be zero as a whole; before the first layer's attention there is nothing to mix."""
_ROWS_MAY_BE_ZERO = ("embed_tokens.weight", "lm_head.weight")
"""Ends of names of tensors with rows that no token uses."""


class Trouble(NamedTuple):
    """Something about one tensor that no good checkpoint has.

    `sure`: it cannot be computed with. Otherwise it is zeros, which may be as published: a digest that is
    right clears them.
    """

    tensor: str
    what: str
    sure: bool


@dataclass(slots=True)
class _Seen:
    """What is known of one tensor so far."""

    nonzero: bool = False
    zero_pages: int = 0
    first_zero_page: int = 0
    bad: int = 0
    first_bad: int = 0


class ShardScan:
    """Scans one shard. Pieces begin on multiples of PAGE, as `feed` goes through the file without gaps."""

    def __init__(self, header: Header, glance: Glance = glance) -> None:
        """glance: how a piece in the middle of a tensor is looked at; only what it finds is looked at again."""
        self._glance = glance
        order = np.argsort(header.offsets, kind="stable")
        tensors = list(header)
        in_order = [tensors[i] for i in order.tolist()]
        self._names = [name for name, _, _, _ in in_order]
        self._dtypes = [kind.dtype for _, kind, _, _ in in_order]
        self._begins = [offset for _, _, offset, _ in in_order]
        self._ends = [offset + nbytes for _, _, offset, nbytes in in_order]
        self._widths = [self._width(i) for i in range(len(in_order))]
        self._at = 0
        self._seen: dict[int, _Seen] = {}
        self._carry = b""
        self.troubles: list[Trouble] = []

    def feed(self, offset: int, piece: npt.NDArray[np.uint8]) -> None:
        """The bytes of the file from `offset` on."""
        if self._nothing_there(offset, piece):
            return
        stop = offset + len(piece)
        zeros = _zero_pages(offset, piece)
        i = self._at
        while i < len(self._begins) and self._begins[i] < stop:
            first, last = max(offset, self._begins[i]), min(stop, self._ends[i])
            seen = self._seen.setdefault(i, _Seen())
            if last > first:
                self._look(i, seen, first, piece[first - offset : last - offset])
                if len(zeros):
                    self._count_zero_pages(i, seen, zeros)
            if self._ends[i] > stop:
                break
            self._finish(i)
            i += 1
        self._at = i

    def _width(self, i: int) -> int:
        """Bytes of a number that may be NaN, 0 where none can be, -1 for what a glance does not do."""
        dtype = self._dtypes[i]
        if dtype in _INFINITY:
            return _INFINITY[dtype][0] if _INFINITY[dtype][0] <= 4 else -1
        return -1 if self._names[i].endswith("weight_scale") else 0

    def _nothing_there(self, offset: int, piece: npt.NDArray[np.uint8]) -> bool:
        """Whether a glance is enough: the piece lies inside one tensor and has nothing remarkable."""
        i = self._at
        if i >= len(self._begins) or offset <= self._begins[i] or offset + len(piece) >= self._ends[i]:
            return False
        seen, width = self._seen.get(i), self._widths[i]
        if seen is None or not seen.nonzero or width < 0 or self._carry or len(piece) % PAGE:
            return False
        if width and (offset - self._begins[i]) % width:
            return False
        limit = _INFINITY[self._dtypes[i]][1] if width else ZERO_PAGE
        return self._glance(piece, width) < limit

    def _look(self, i: int, seen: _Seen, first: int, part: npt.NDArray[np.uint8]) -> None:
        if not seen.nonzero:
            seen.nonzero = bool(part[:64].any() or part.any())
        dtype = self._dtypes[i]
        if dtype in _INFINITY:
            self._look_at_floats(i, seen, first, part, dtype)
        elif dtype == "U8" and self._names[i].endswith("weight_scale") and part.max() == 255:
            where = np.flatnonzero(part == 255)
            self._bad(seen, len(where), first - self._begins[i] + int(where[0]))

    def _look_at_floats(
        self,
        i: int,
        seen: _Seen,
        first: int,
        part: npt.NDArray[np.uint8],
        dtype: str,
    ) -> None:
        width = _INFINITY[dtype][0]
        if self._carry:  # a number that began in the piece before
            head = self._carry + part[: width - len(self._carry)].tobytes()
            first -= len(self._carry)
            part = part[width - len(self._carry) :]
            self._test(i, seen, first, np.frombuffer(head, np.uint8), dtype)
            first += width
            self._carry = b""
        whole = len(part) // width * width
        self._test(i, seen, first, part[:whole], dtype)
        if whole < len(part):
            self._carry = part[whole:].tobytes()

    def _test(self, i: int, seen: _Seen, first: int, part: npt.NDArray[np.uint8], dtype: str) -> None:
        if not len(part):
            return
        width, infinity = _INFINITY[dtype]
        numbers = part.view(f"u{width}")
        minus_infinity = infinity + (1 << (8 * width - 1))
        if part.view(f"i{width}").max() >= infinity or numbers.max() >= minus_infinity:
            where = np.flatnonzero((numbers & numbers.dtype.type(infinity)) == infinity)
            index = (first - self._begins[i]) // width + int(where[0])
            self._bad(seen, len(where), index)

    @staticmethod
    def _bad(seen: _Seen, count: int, index: int) -> None:
        if not seen.bad:
            seen.first_bad = index
        seen.bad += count

    def _count_zero_pages(self, i: int, seen: _Seen, zeros: npt.NDArray[np.int64]) -> None:
        inside = zeros[(zeros >= self._begins[i]) & (zeros + PAGE <= self._ends[i])]
        if len(inside):
            if not seen.zero_pages:
                seen.first_zero_page = int(inside[0])
            seen.zero_pages += len(inside)

    def _finish(self, i: int) -> None:
        seen, name = self._seen.pop(i), self._names[i]
        self._carry = b""
        if seen.bad:
            what = (
                "scales of 255, which stand for NaN" if self._dtypes[i] == "U8" else "NaN or infinite numbers"
            )
            self.troubles.append(
                Trouble(name, f"{seen.bad:,} {what}, the first at index {seen.first_bad:,}", True)
            )
        if self._ends[i] == self._begins[i]:
            return
        if not seen.nonzero:
            if not name.endswith(_MAY_BE_ZERO):
                self.troubles.append(Trouble(name, "nothing but zeros", False))
        elif seen.zero_pages and not name.endswith(_ROWS_MAY_BE_ZERO + _MAY_BE_ZERO):
            size = seen.zero_pages * PAGE
            self.troubles.append(
                Trouble(name, f"{size:,} bytes of zeros, the first at byte {seen.first_zero_page:,}", False)
            )


def _zero_pages(offset: int, piece: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Offsets in the file of the whole pages of the piece that are zero."""
    count = len(piece) // PAGE
    pages = piece[: count * PAGE].reshape(count, PAGE)
    # nearly every page is cleared by its first eight bytes
    likely = np.flatnonzero(piece[: count * PAGE].view(np.uint64)[:: PAGE // 8] == 0)
    if len(likely):
        likely = likely[~pages[likely].any(axis=1)]
    return likely * PAGE + offset
