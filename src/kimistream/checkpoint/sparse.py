"""What is real in a sparse synthetic checkpoint; all the rest are holes in the files, and read as zeros.

Knows: which bytes have to be there so that routing and logits vary from token to token.
Does not know: how files are written.

The vectors are whole. A router matrix of the full shape has 12.8 MB, and there are 92: each expert's row
keeps only a part, in 4 KiB blocks that two neighbouring rows share. Some embedding rows are whole, and the
output head has a block in the row of each of them but the special ids, so that the generated tokens have
real embeddings again.

In every other matrix a *thread* is real: the blocks around two rows and two columns, the same in all, so
that numbers pass from the embedding through attention, shared experts and some of the routed experts to the
logits. A matrix read from the wrong place, or a state that is lost, then changes the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from kimistream.checkpoint.config import ModelConfig
from kimistream.checkpoint.contents import (
    GAINS,
    Scale,
    codes,
    content,
    key_of,
    numbers,
    scale_of,
    scales,
)
from kimistream.checkpoint.released import Placed

BLOCK = 4096
"""The unit in which file systems store files with holes."""
FIRST_ROWS = 768
SPREAD_ROWS = 128
"""Real embedding rows: so many at the start, so many evenly over the rest, and the special ids."""
SPECIAL_IDS = 256
THREAD = 64
WIDTH = 2
"""The rows, and the columns, of the thread are 64 and 65."""
EXPERT_STEP = 128
"""Every so many experts one has the thread."""
THREAD_EXPONENT = 126
"""The middle scale byte in a thread: with few columns real, the numbers have to be large."""
FROM_HIDDEN = frozenset(
    ("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", "f_a_proj", "q_a_proj", "kv_a_proj_with_mqa",
     "gate_proj", "up_proj", "shared_gate_proj", "shared_up_proj", "routed_expert_down_proj")
)  # fmt: skip
"""The matrices whose input has numbers everywhere; that of the others has the thread alone."""


def real_rows(vocab: int) -> list[int]:
    """The token ids with a real embedding, ascending; the special ids, the last 256, are among them."""
    plain = vocab - SPECIAL_IDS
    spread = range(FIRST_ROWS, plain, max(1, (plain - FIRST_ROWS) // SPREAD_ROWS))
    return sorted({*range(min(FIRST_ROWS, plain)), *spread, *range(plain, vocab)})


def real_pieces(
    config: ModelConfig, seed: int, placed: Sequence[Placed], *, dry: bool = False
) -> Iterator[tuple[int, bytes]]:
    """(offset in the file, bytes) of everything real in a shard. `dry` gives zeros of the right length."""
    for item in placed:
        tensor = item.tensor
        small = math.prod(tensor.shape[:-1]) == 1 or tensor.role.endswith("conv1d")
        if tensor.role == "vision":
            continue
        if small and tensor.dtype != "U8":
            yield (
                item.offset,
                bytes(tensor.nbytes) if dry else content(seed, tensor, config.kda.num_heads).tobytes(),
            )
        elif tensor.role == "router":
            yield from _blocks(seed, item, _router_blocks(item), GAINS["router"], dry)
        elif tensor.role == "embed_tokens":
            yield from _rows(seed, item, real_rows(config.vocab_size), dry)
        elif tensor.role == "lm_head":
            rows = [row for row in real_rows(config.vocab_size) if row < config.vocab_size - SPECIAL_IDS]
            yield from _blocks(seed, item, _around(item, rows), GAINS["lm_head"], dry)
        elif tensor.dtype == "BF16":
            yield from _blocks(seed, item, _thread(config, item), GAINS.get(tensor.role, 1.0), dry)
        elif int(tensor.name.split(".experts.")[1].split(".")[0]) % EXPERT_STEP == 0:
            yield from _expert_blocks(seed, item, _thread(config, item), dry)


def _thread(config: ModelConfig, item: Placed) -> list[tuple[int, int]]:
    """Ranges of the file: the blocks around the thread's rows and columns."""
    first = [THREAD]
    if item.tensor.role == "b_proj":
        first = [0]  # a row is a head, and the thread runs through the first one
    elif item.tensor.role == "kv_b_proj":
        first = [THREAD, config.mla.nope_head_dim + THREAD]  # the key and the value of the first head
    return _around(item, [row + i for row in first for i in range(WIDTH)])


def _around(item: Placed, rows: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of the file: the blocks that hold the thread's columns of the rows that there are."""
    count, stored = item.tensor.shape[0], item.tensor.nbytes
    numbers_of = {"weight_packed": 2, "weight_scale": 32}.get(item.tensor.name.rsplit(".", 1)[1], 1)
    columns = item.tensor.shape[1] * numbers_of
    row_bytes = stored // count
    if columns < THREAD + WIDTH:
        return []
    starts: set[int] = set()
    for row in rows:
        if row < count:
            begin = item.offset + row * row_bytes + THREAD * row_bytes // columns
            end = item.offset + row * row_bytes + (THREAD + WIDTH - 1) * row_bytes // columns
            starts |= {begin // BLOCK * BLOCK, end // BLOCK * BLOCK}
    return [(start, start + BLOCK) for start in sorted(starts)]


def _router_blocks(item: Placed) -> list[tuple[int, int]]:
    """Ranges of the file, one block for each two rows: where one row ends and the next begins.

    Of the two ways to pair the rows the one whose border lies nearer to the middle of the block.
    """
    rows = item.tensor.shape[0]
    row_bytes = item.tensor.nbytes // rows
    if row_bytes <= 2 * BLOCK:
        return [(item.offset, item.offset + item.tensor.nbytes)]

    def off_middle(shift: int) -> int:
        return abs((item.offset + (1 + shift) * row_bytes) % BLOCK - BLOCK // 2)

    first = min((0, 1), key=off_middle) + 1
    borders = [item.offset + row * row_bytes for row in range(first, rows, 2)]
    starts = {border // BLOCK * BLOCK for border in borders}
    if first == 2:  # the first row has no partner
        starts.add(-(-item.offset // BLOCK) * BLOCK)
    if (rows - first) % 2 == 0:  # nor has the last
        starts.add((item.offset + item.tensor.nbytes) // BLOCK * BLOCK - BLOCK)
    return [(start, start + BLOCK) for start in sorted(starts)]


def _blocks(
    seed: int, item: Placed, ranges: Sequence[tuple[int, int]], gain: float, dry: bool
) -> Iterator[tuple[int, bytes]]:
    """bf16 numbers for the ranges, so large that the few columns of a row give the product its `gain`."""
    row_bytes = item.tensor.nbytes // item.tensor.shape[0]
    end = item.offset + item.tensor.nbytes
    key = key_of(seed, item.tensor.name)
    for start, stop in ranges:
        start, stop = max(start, item.offset), min(stop, end)
        columns = min(stop - start, row_bytes) // 2
        if item.tensor.role in ("router", "lm_head") and row_bytes > 2 * BLOCK:
            columns //= 2  # a block is shared by two rows
        if item.tensor.role not in FROM_HIDDEN and item.tensor.role not in ("router", "lm_head"):
            columns = 2 * WIDTH
        scale = Scale(0.0, gain / math.sqrt(max(columns, 1)))
        count = (stop - start) // 2
        yield start, bytes(2 * count) if dry else numbers(key ^ start, scale, "BF16", count).tobytes()


def _expert_blocks(
    seed: int, item: Placed, ranges: Sequence[tuple[int, int]], dry: bool
) -> Iterator[tuple[int, bytes]]:
    """MXFP4 codes or scales for the ranges."""
    key = key_of(seed, item.tensor.name)
    for start, stop in ranges:
        start, stop = max(start, item.offset), min(stop, item.offset + item.tensor.nbytes)
        count = stop - start
        if dry:
            yield start, bytes(count)
        elif item.tensor.role.endswith("weight_packed"):
            yield start, codes(key ^ start, count).tobytes()
        else:
            yield start, scales(key ^ start, THREAD_EXPONENT, count).tobytes()


def _rows(seed: int, item: Placed, rows: Sequence[int], dry: bool) -> Iterator[tuple[int, bytes]]:
    """Whole rows of the embedding."""
    row_bytes = item.tensor.nbytes // item.tensor.shape[0]
    key = key_of(seed, item.tensor.name)
    scale = scale_of(item.tensor)
    for row in rows:
        data = np.zeros(row_bytes, np.uint8) if dry else numbers(key ^ row, scale, "BF16", row_bytes // 2)
        yield item.offset + row * row_bytes, data.tobytes()
