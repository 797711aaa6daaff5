"""Multi-head latent attention in the absorbed form over cached latents (ARCHITECTURE section 6).

Knows: for each head, q' = W_k^T q_nope; score = (q' . c + q_r . k_r) * (nope + rope)^-0.5 for every
position up to the row's own; o = W_v (sum p c) with p their softmax. Does not know: the projections before
and after.

Orders, all of them functions of the row and of absolute positions alone:

- q' sums over the nope index, ascending by FMA; scores and W_v products are `tiles.dots` over the padded
  latent.
- Positions are taken in blocks of 64 from position 0. A block's largest score may raise the running maximum
  m; the running sums are then scaled by exp(m_old - m_new) (by exactly 1 if m stays), and the block is
  added position by position. The sum of the weights of a block is taken 16 lanes at a time and halved, then
  added to the running one. The division by the sum of the weights comes last.

So results do not depend on how many rows are in the call, where a sequence is cut, how many heads come
together or how many threads there are.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from . import runtime
from .band_panels import row_of_bands
from .bands import BandForm, described
from .exp import exp1, vexp
from .gather import F32, widen_row
from .jobs import JOB, address, job, real
from .runtime import argument, kernel
from .simd import at, hmax, hsum, ld1, ldf, splat, st1, step, stf
from .simd_more import INLINE, constant, stf_part
from .tiles import (
    TILE,
    dots_column,
    dots_full,
    dots_one,
    dots_row,
    outer_column,
    outer_full,
    outer_one,
    outer_row,
)

Floats = npt.NDArray[np.float32]

BLOCK = 64
"""Positions of a block of the softmax. The bits depend on it: it is part of the contract."""
ROWS = 32
"""Rows of one item at most."""
PAIRS = 128
"""(row, head) pairs of one item at most, as long as an item has at least a tile of four heads."""
PANEL = 32
"""Rows of kv_b that are widened at a time."""


# ------------------------------------------------------------------ blocks of any size, in register tiles
@njit(**INLINE)
def _dots(x, x_row, rows, y, y_row, columns, vectors, out, out_row):
    r = 0
    while r < rows:
        c = 0
        xs, to = step(x, r * x_row), step(out, r * out_row)
        if r + TILE <= rows:
            while c + TILE <= columns:
                dots_full(xs, x_row, step(y, c * y_row), y_row, vectors, step(to, c * 4), out_row)
                c += TILE
            while c < columns:
                dots_column(xs, x_row, step(y, c * y_row), y_row, vectors, step(to, c * 4), out_row)
                c += 1
            r += TILE
        else:
            while c + 4 <= columns:
                dots_row(xs, x_row, step(y, c * y_row), y_row, vectors, step(to, c * 4), out_row)
                c += 4
            while c < columns:
                dots_one(xs, x_row, step(y, c * y_row), y_row, vectors, step(to, c * 4), out_row)
                c += 1
            r += 1


@njit(**INLINE)
def _outer(x, x_row, rows, n, m, m_row, vectors, scale, scale_step, acc, acc_row):
    r = 0
    while r < rows:
        c = 0
        xs, s, to = step(x, r * x_row), step(scale, r * scale_step), step(acc, r * acc_row)
        if r + TILE <= rows:
            while c + TILE <= vectors:
                outer_full(xs, x_row, n, step(m, c * 64), m_row, s, step(to, c * 64), acc_row)
                c += TILE
            while c < vectors:
                outer_column(xs, x_row, n, step(m, c * 64), m_row, s, step(to, c * 64), acc_row)
                c += 1
            r += TILE
        else:
            while c + 4 <= vectors:
                outer_row(xs, x_row, n, step(m, c * 64), m_row, s, step(to, c * 64), acc_row)
                c += 4
            while c < vectors:
                outer_one(xs, x_row, n, step(m, c * 64), m_row, s, step(to, c * 64), acc_row)
                c += 1
            r += 1


@njit(**INLINE)
def _fill(p, floats, value):
    for i in range(0, floats, 16):
        stf(p, i * 4, constant(value))


@njit(**INLINE)
def _widen_rows(fmt, kv_b, bands, words, first, rows, rank, panel, wide):
    """`rows` rows of kv_b from number `first` on, `rank` numbers each, to rows of `wide` bytes, zero after the numbers.

    bands: 0, or a description of the bands they are in (`band_panels`); words: room for a row of those.
    """
    for i in range(rows):
        if rank & 15:
            stf(panel, (i + 1) * wide - 64, constant(0.0))
        if bands == 0:
            row = step(kv_b, (first + i) * rank * (4 if fmt == F32 else 2))
        else:
            row = row_of_bands(bands, first + i, rank, words)
        widen_row(fmt, row, 0, panel, i * wide, rank)


# ------------------------------------------------------------------ the steps of one item
@njit(**INLINE)
def _softmax_block(scores, n, scale, m, l, factor):
    """Scores of one row and head to weights; moves m and l forward, leaves the factor for the older sums."""
    if n & 15:
        for i in range(n, (n + 15) & ~15):
            st1(scores, i * 4, np.float32(-np.inf))
    top = np.float32(-np.inf)
    for i in range(0, n * 4, 64):
        s = ldf(scores, i) * splat(scale)
        stf(scores, i, s)
        top = max(top, hmax(s))
    old = ld1(m, 0)
    new = max(old, top)
    shrink = exp1(old - new)
    total = constant(0.0)
    for i in range(0, n * 4, 64):
        p = vexp(ldf(scores, i) - splat(new))
        stf(scores, i, p)
        total = total + p
    st1(m, 0, new)
    st1(l, 0, ld1(l, 0) * shrink + hsum(total))
    st1(factor, 0, shrink)


@kernel(JOB)
def _attend(a, item, thread):
    """Item: a group of heads and a run of rows."""
    kv_b, q, latents, out = at(argument(a, 0)), address(a, 1), address(a, 2), address(a, 3)
    fmt, nope, rope, v_dim = argument(a, 5), argument(a, 6), argument(a, 7), argument(a, 8)
    rank, head0, head1, heads = argument(a, 9), argument(a, 10), argument(a, 11), argument(a, 12)
    pos0, rows, group, groups = argument(a, 13), argument(a, 14), argument(a, 15), argument(a, 16)
    most, scale = argument(a, 17), real(a, 18)

    first = (item % groups) * group
    hn = min(group, head1 - head0 - first)
    t0 = item // groups * most
    tn = min(most, rows - t0)
    head_rows, bands = nope + v_dim, argument(a, 20)
    stored = first * head_rows
    first += head0
    width, q_width = rank + rope, nope + rope
    rank_v, width_v = (rank + 15) >> 4, (width + 15) >> 4
    wide, q_wide = rank_v * 64, width_v * 64
    q_row = heads * q_width * 4

    queries = step(at(argument(a, 4)), thread * argument(a, 19) * 4)
    sums = step(queries, group * most * q_wide)
    tops = step(sums, group * most * wide)
    weights = step(tops, group * most * 4)
    ones = step(weights, group * most * 4)
    factors = step(ones, 64)
    scores = step(factors, 64)
    panel = step(scores, 4 * BLOCK * 4)
    packed = step(panel, PANEL * wide)
    words = step(packed, BLOCK * q_wide)
    pairs = tn * hn
    _fill(queries, pairs * width_v * 16, 0.0)
    _fill(sums, pairs * rank_v * 16, 0.0)
    for i in range(pairs):
        st1(tops, i * 4, np.float32(-np.inf))
        st1(weights, i * 4, np.float32(0.0))
    _fill(ones, 16, 1.0)

    # the queries: W_k^T q_nope, then q_r
    for h in range(hn):
        source = step(q, t0 * q_row + (first + h) * q_width * 4)
        for d in range(0, nope, PANEL):
            n = min(PANEL, nope - d)
            _widen_rows(fmt, kv_b, bands, words, stored + h * head_rows + d, n, rank, panel, wide)
            x, to = step(source, d * 4), step(queries, h * q_wide)
            _outer(x, q_row, tn, n, panel, wide, rank_v, ones, 0, to, hn * q_wide)
        for t in range(tn):
            at_rope = (t * hn + h) * q_wide + rank * 4
            for i in range(rope):
                st1(queries, at_rope + i * 4, ld1(source, t * q_row + (nope + i) * 4))

    # all positions, block by block
    for base in range(0, pos0 + t0 + tn, BLOCK):
        block, block_row = step(latents, base * width * 4), width * 4
        if width & 15:
            for i in range(min(BLOCK, pos0 + t0 + tn - base)):
                stf(packed, (i + 1) * q_wide - 64, constant(0.0))
                widen_row(F32, block, i * block_row, packed, i * q_wide, width)
            block, block_row = packed, q_wide
        for t in range(tn):
            n = min(BLOCK, pos0 + t0 + t + 1 - base)
            if n > 0:
                for h in range(0, hn, 4):
                    r = min(4, hn - h)
                    pair = t * hn + h
                    x = step(queries, pair * q_wide)
                    _dots(x, q_wide, r, block, block_row, n, width_v, scores, BLOCK * 4)
                    for i in range(r):
                        s = step(scores, i * BLOCK * 4)
                        m, l = step(tops, (pair + i) * 4), step(weights, (pair + i) * 4)
                        _softmax_block(s, n, scale, m, l, step(factors, i * 4))
                    acc = step(sums, pair * wide)
                    _outer(scores, BLOCK * 4, r, n, block, block_row, rank_v, factors, 4, acc, wide)

    # the values: W_v (sum p c) / sum p
    for h in range(hn):
        for v in range(0, v_dim, PANEL):
            n = min(PANEL, v_dim - v)
            _widen_rows(fmt, kv_b, bands, words, stored + h * head_rows + nope + v, n, rank, panel, wide)
            for t in range(0, tn, 4):
                r = min(4, tn - t)
                _dots(
                    step(sums, (t * hn + h) * wide), hn * wide, r, panel, wide, n, rank_v, scores, PANEL * 4
                )
                for i in range(r):
                    l = splat(ld1(weights, ((t + i) * hn + h) * 4))
                    at_out = ((t0 + t + i) * heads + first + h) * v_dim + v
                    for j in range(0, n, 16):
                        o = ldf(scores, (i * PANEL + j) * 4) / l
                        if j + 16 <= n:
                            stf(out, (at_out + j) * 4, o)
                        else:
                            stf_part(out, (at_out + j) * 4, o, n - j)


# ------------------------------------------------------------------ from Python
def _shape(rows: int, heads: int, threads: int) -> tuple[int, int]:
    """(heads, rows) of one item: groups of four heads, more of them while there are few rows."""
    most = max(1, min(rows, ROWS))
    tiles = max(1, PAIRS // most // 4)
    tiles = min(tiles, max(1, heads // (8 * threads)))
    return 4 * min(tiles, 12), most


def _floats(group: int, most: int, rank: int, rope: int) -> int:
    wide, q_wide = -(-rank // 16) * 16, -(-(rank + rope) // 16) * 16
    words = -(-rank // 128) * 64
    return group * most * (q_wide + wide + 2) + 2 * 16 + 4 * BLOCK + PANEL * wide + BLOCK * q_wide + words


def mla_scratch_floats(rows: int, heads: int, kv_rank: int, rope: int) -> int:
    """float32 numbers of scratch that `mla_attend` wants for `rows` rows and `heads` heads in a call."""
    group, most = _shape(rows, heads, runtime.threads())
    return runtime.threads() * _floats(group, most, kv_rank, rope)


def mla_attend(
    fmt: int,
    kv_b_addr: int,
    head0: int,
    head1: int,
    nope: int,
    rope: int,
    v_dim: int,
    kv_rank: int,
    q: Floats,
    latents: Floats,
    pos0: int,
    out: Floats,
    scratch: Floats | None = None,
    form: BandForm | None = None,
) -> None:
    """out[:, h * v_dim : (h + 1) * v_dim] for heads head0 <= h < head1; row t sees positions 0..pos0 + t.

    kv_b: stored rows of kv_rank numbers of form `fmt` (BF16, F32, F16) from the raw address kv_b_addr (any
    alignment), for head0 first: `nope` key rows, then `v_dim` value rows. q: contiguous float32 [T, heads *
    (nope + rope)] (all heads); latents: contiguous float32 [P, kv_rank + rope], P >= pos0 + T, the rows'
    own latents already stored; out: contiguous float32 [T, heads * v_dim]. scratch: float32 of at least
    `mla_scratch_floats`, or None for that of `runtime.scratch` (bounded by 128 pairs of a row and a head
    for each thread). form: if kv_b is stored in bands (checked ones), their form; `fmt` is then form.source, and
    kv_b_addr is the band that head0's rows begin: nope + v_dim must be a multiple of 16.
    """
    rows, heads = q.shape[0], q.shape[1] // (nope + rope)
    count = head1 - head0
    if rows == 0 or count <= 0:
        return
    group, most = _shape(rows, count, runtime.threads())
    floats = _floats(group, most, kv_rank, rope)
    room = runtime.scratch(floats * 4) if scratch is None else scratch
    groups = -(-count // group)
    sizes = int(fmt), nope, rope, v_dim, kv_rank, head0, head1, heads, pos0, rows, group, groups, most
    bands = 0 if form is None else described(form, kv_b_addr)
    scale = 1.0 / math.sqrt(nope + rope)
    job(_attend, groups * -(-rows // most), kv_b_addr, q, latents, out, room, *sizes, scale, floats, bands)
