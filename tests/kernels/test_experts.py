"""Many experts over many rows: right against float64, and the same bits alone, in company and for any cut."""

from __future__ import annotations

import numpy as np
import pytest

from kimistream.kernels import runtime
from kimistream.kernels.experts import grouped_experts, scratch_bytes
from kimistream.kernels.formats import Activation, WeightFormat
from kimistream.kernels.matrix import padded, split_rows

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


class Experts:
    """Random experts in memory, packed back to back at an odd address, and their float64 matrices."""

    def __init__(self, fmt: WeightFormat, count: int, inner: int, width: int) -> None:
        rng = np.random.default_rng(inner * width + count)
        self.fmt, self.inner, self.width = fmt, inner, width
        pieces, spots, self.matrices = [np.zeros(1, np.uint8)], [], []
        at = 1
        for _ in range(count):
            row, dense = [], []
            for rows, cols in ((inner, width), (width, inner), (inner, width)):
                stored, matrix = self._make(rng, rows, cols)
                for part in stored:
                    row.append(at if part.size else -1)
                    pieces.append(part)
                    at += part.size
                dense.append(matrix)
            spots.append(row)
            self.matrices.append(dense)
        self.memory = np.concatenate(pieces)
        base = self.memory.ctypes.data
        self.addresses = np.array([[base + s if s >= 0 else 0 for s in row] for row in spots], np.int64)

    def _make(self, rng, rows: int, cols: int):
        none = np.zeros(0, np.uint8)
        if self.fmt == WeightFormat.MXFP4:
            codes = rng.integers(0, 256, (rows, cols // 2), np.uint8)
            scales = rng.integers(118, 124, (rows, cols // 32), np.uint8)
            dense = np.empty((rows, cols))
            dense[:, 0::2], dense[:, 1::2] = E2M1[codes & 15], E2M1[codes >> 4]
            return (codes.reshape(-1), scales.reshape(-1)), dense * np.repeat(2.0 ** (scales - 127.0), 32, 1)
        values = (rng.standard_normal((rows, cols)) * 0.1).astype(np.float32)
        bits = values.view(np.uint32) >> 16
        dense = (bits << 16).view(np.float32).astype(np.float64)
        return (bits.astype(np.uint16).view(np.uint8).reshape(-1), none), dense

    def reference(self, task: int, x: np.ndarray, activation: Activation) -> np.ndarray:
        w1, w2, w3 = self.matrices[task]
        g, u = w1 @ x, w3 @ x
        sigmoid = 1 / (1 + np.exp(-g))
        if activation == Activation.SILU:
            return w2 @ (g * sigmoid * u)
        return w2 @ (4 * np.tanh(g / 4) * sigmoid * 25 * np.tanh(u / 25))


def compute(experts: Experts, tasks: list[list[int]], x: np.ndarray, activation: Activation, which=None):
    """(code, out) for tasks[i] = the rows of expert which[i]."""
    which = list(range(len(tasks))) if which is None else which
    xs = np.empty((len(x), padded(experts.width)), np.float32)
    split_rows(x, xs)
    start = np.cumsum([0, *map(len, tasks)]).astype(np.int32)
    index = np.array([t for rows in tasks for t in rows], np.int32)
    out = np.full((len(index) + 3, experts.width), np.nan, np.float32)
    order = np.random.default_rng(1).permutation(len(index)).astype(np.int32)
    scratch = np.empty(scratch_bytes(len(x), experts.inner, experts.width) // 4, np.float32)
    code = grouped_experts(
        experts.fmt,
        experts.addresses[which],
        start,
        index,
        order,
        xs,
        experts.inner,
        activation,
        4.0,
        25.0,
        out,
        scratch,
    )
    return code, out[order]


SHAPES = [
    (WeightFormat.MXFP4, 64, 96, Activation.SITU),
    (WeightFormat.MXFP4, 96, 32, Activation.SILU),
    (WeightFormat.BF16, 48, 144, Activation.SILU),
    (WeightFormat.BF16, 40, 50, Activation.SITU),
]


@pytest.mark.parametrize(("fmt", "inner", "width", "activation"), SHAPES)
def test_each_row_gets_its_experts_output(fmt, inner, width, activation):
    experts = Experts(fmt, 5, inner, width)
    x = np.random.default_rng(2).standard_normal((7, width)).astype(np.float32)
    tasks = [[0], [3, 5, 6], [1, 2], list(range(7)), [4]]
    code, out = compute(experts, tasks, x, activation)
    assert code == -1
    rows = iter(out)
    for task, chosen in enumerate(tasks):
        for t in chosen:
            want = experts.reference(task, x[t].astype(np.float64), activation)
            assert np.allclose(next(rows), want, rtol=2e-5, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize(("fmt", "inner", "width", "activation"), SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_bits_do_not_depend_on_company_or_threads(fmt, inner, width, activation, threads):
    experts = Experts(fmt, 40, inner, width)
    x = np.random.default_rng(3).standard_normal((6, width)).astype(np.float32)
    rng = np.random.default_rng(4)
    tasks = [sorted(rng.choice(6, rng.integers(1, 7), replace=False).tolist()) for _ in range(40)]
    before = runtime.threads()
    runtime.set_threads(threads)
    try:
        _, together = compute(experts, tasks, x, activation)
    finally:
        runtime.set_threads(before)
    rows = iter(together)
    for task, chosen in enumerate(tasks):
        for t in chosen:
            _, alone = compute(experts, [[0]], x[t : t + 1], activation, which=[task])
            assert np.array_equal(next(rows).view(np.uint32), alone[0].view(np.uint32))


@pytest.mark.parametrize("column", [1, 3, 5])
def test_the_first_task_with_a_scale_of_255_is_told(column):
    experts = Experts(WeightFormat.MXFP4, 6, 64, 96)
    x = np.random.default_rng(5).standard_normal((3, 96)).astype(np.float32)
    for bad in (4, 2):
        experts.memory[experts.addresses[bad, column] - experts.memory.ctypes.data + 5] = 255
        code, _ = compute(experts, [[0], [1, 2], [0, 2], [1], [0, 1, 2], [2]], x, Activation.SITU)
        assert code == bad
