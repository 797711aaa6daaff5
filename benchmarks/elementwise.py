"""The kernels that are no matrix products: nanoseconds per number, and shares of the memory and FMA rates.

    python benchmarks/elementwise.py [--repeat 200] [--threads 1]

The functions run over numbers that stay in the cache, on one thread; the limit is 0.5 ns per number. The
KDA recurrence of one row moves its whole state through memory, so its limit is the rate of a plain copy;
attention over many cached positions is bound by multiplying, so its limit is the FMA rate. Both limits are
measured in the same run, in turn with what is measured against them; medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from numba import njit

from kimistream.kernels import exp, runtime
from kimistream.kernels.conv import short_conv
from kimistream.kernels.formats import Activation, WeightFormat
from kimistream.kernels.glu import glu
from kimistream.kernels.kda import kda_decay, kda_qk_norm, kda_recurrence
from kimistream.kernels.mla import mla_attend
from kimistream.kernels.norm import gated_head_norm, rms_norm
from kimistream.kernels.residual import residual_mix
from kimistream.kernels.router import route
from kimistream.kernels.simd import fma, ldf, ptr, stf

LIMIT = 0.5
"""Nanoseconds per number."""
HEADS, WIDTH, HIDDEN = 96, 128, 7168


def clock() -> float:
    """Seconds of this thread alone where it does all the work, which other programs hardly disturb."""
    return time.thread_time() if runtime.threads() == 1 else time.perf_counter()


def seconds(work: Callable[[], object], repeat: int) -> float:
    """The median time of one call."""
    work()
    times = []
    for _ in range(repeat):
        start = clock()
        work()
        times.append(clock() - start)
    return statistics.median(times)


@njit(nogil=True, boundscheck=False, error_model="numpy")
def _multiply(block, rounds):
    """FMAs that wait for nothing: 16 chains in registers."""
    p = ptr(block)
    x, y = ldf(p, 0), ldf(p, 64)
    a = b = c = d = e = f = g = h = i = j = k = l = m = n = o = q = x
    for _ in range(rounds):
        a, b, c, d = fma(a, y, x), fma(b, y, x), fma(c, y, x), fma(d, y, x)
        e, f, g, h = fma(e, y, x), fma(f, y, x), fma(g, y, x), fma(h, y, x)
        i, j, k, l = fma(i, y, x), fma(j, y, x), fma(k, y, x), fma(l, y, x)
        m, n, o, q = fma(m, y, x), fma(n, y, x), fma(o, y, x), fma(q, y, x)
    total = ((a + b) + (c + d)) + ((e + f) + (g + h)) + (((i + j) + (k + l)) + ((m + n) + (o + q)))
    stf(p, 0, total)
    block[0] = 0.5


def verdict(name: str, value: float, unit: str, limit: float | None, least: bool) -> None:
    """One line: what was measured, and whether it keeps its limit."""
    text = f"  {name:<42} {value:8.3f} {unit}"
    if limit is not None:
        good = value >= limit if least else value <= limit
        text += f"   (wanted {'>=' if least else '<='} {limit:g}) {'ok' if good else 'NOT MET'}"
    print(text, flush=True)


def functions(repeat: int) -> None:
    """The four functions and the gated activations, per number of the result."""
    x = np.random.default_rng(1).normal(0, 3, 1 << 16).astype(np.float32)
    out = np.empty_like(x)
    print("functions of float32 numbers, one thread")
    for name in ("exp", "sigmoid", "tanh", "softplus"):
        function = getattr(exp, name)
        took = seconds(lambda f=function: f(x, out), repeat)
        verdict(name, took / x.size * 1e9, "ns per number", LIMIT, False)
    for name, activation, operations in (("SiLU-GLU", Activation.SILU, 1), ("SiTU-GLU", Activation.SITU, 3)):
        took = seconds(lambda a=activation: glu(a, x, x, 4.0, 25.0, out), repeat)
        label = f"{name} ({operations} of the above in each)"
        verdict(label, took / x.size / operations * 1e9, "ns per function", LIMIT, False)


def rows(count: int, repeat: int) -> None:
    """What works on rows of the stream; no limit, they are small beside matrices."""
    rng = np.random.default_rng(2)
    channels = HEADS * WIDTH
    x, h = rng.normal(size=(2, count, HIDDEN)).astype(np.float32)
    stack = rng.normal(size=(8, count, HIDDEN)).astype(np.float32)
    wide, gate, out = rng.normal(size=(3, count, channels)).astype(np.float32)
    w, taps = rng.normal(size=HIDDEN).astype(np.float32), rng.normal(size=(channels, 4)).astype(np.float32)
    tail, a_log = np.zeros((3, channels), np.float32), np.zeros(HEADS, np.float32)
    logits = rng.normal(size=(count, 896)).astype(np.float32)
    ids, weights = np.empty((count, 16), np.int32), np.empty((count, 16), np.float32)
    bias, dt_bias = np.zeros(896, np.float32), np.zeros(channels, np.float32)
    works: list[tuple[str, int, Callable[[], object]]] = [
        ("rms_norm", HIDDEN, lambda: rms_norm(x, w, 1e-5, h)),
        ("residual_mix of 8 + 1", 9 * HIDDEN, lambda: residual_mix(stack, 8, x, w, w, 1e-5, h)),
        ("gated_head_norm", channels, lambda: gated_head_norm(wide, w[:WIDTH], 1e-5, gate, out)),
        ("short_conv", channels, lambda: short_conv(wide, taps, tail, out)),
        ("kda_qk_norm", 2 * channels, lambda: kda_qk_norm(wide, gate, HEADS, WIDTH)),
        ("kda_decay", channels, lambda: kda_decay(wide, dt_bias, a_log, -5.0, out)),
        ("route, 16 of 896", 896, lambda: route(logits, bias, 16, True, 1, 1, True, 1.0, ids, weights)),
    ]
    print(f"{count} rows of Kimi K3's sizes, one thread")
    for name, numbers, work in works:
        took = seconds(work, repeat) / count
        per_number = f"us per row, {took / numbers * 1e9:6.3f} ns per number"
        verdict(name, took * 1e6, per_number, None, False)


def recurrence(repeat: int) -> None:
    """One row through a state that is in memory, against a copy of as many bytes; then many rows."""
    rng = np.random.default_rng(3)
    states = [np.ones((HEADS, WIDTH, WIDTH), np.float32) for _ in range(24)]
    copies = [np.ones_like(states[0]) for _ in range(24)]
    q, k, v = rng.normal(size=(3, 64, HEADS * WIDTH)).astype(np.float32)
    kda_qk_norm(q, k, HEADS, WIDTH)
    decay, beta = np.full_like(q, 0.9), rng.normal(size=(64, HEADS)).astype(np.float32)
    out = np.empty_like(q)
    shares = []
    for _ in range(max(3, repeat // 20)):
        start = clock()
        for state in states:
            kda_recurrence(q[:1], k[:1], v[:1], decay[:1], beta[:1], state, out[:1])
        middle = clock()
        for source, to in zip(states, copies, strict=True):
            np.copyto(to, source)
        shares.append((clock() - middle) / (middle - start))
    moved = 2 * sum(s.nbytes for s in states) / (middle - start) / 1e9
    print(f"KDA recurrence, {runtime.threads()} threads (the copy has one)")
    verdict(f"1 row: {moved:.1f} GB/s in and out, over a copy", statistics.median(shares), "", 0.6, True)
    took = seconds(lambda: kda_recurrence(q, k, v, decay, beta, states[0], out), max(3, repeat // 20))
    verdict("64 rows", took / 64 / HEADS * 1e6, "us per row and head", None, False)


def attention(repeat: int) -> None:
    """Absorbed attention over 4096 positions, against the rate of FMAs."""
    nope, rope, v, rank = 128, 64, 128, 512
    rng = np.random.default_rng(4)
    weights = rng.integers(0x3C00, 0x3D00, (HEADS * (nope + v), rank)).astype(np.uint16)
    block = np.float32([0.5] * 32)
    print(f"MLA over 4096 positions, {runtime.threads()} threads (share of the FMA rate of as many)")
    for count in (1, 8, 64):
        q = rng.normal(size=(count, HEADS * (nope + rope))).astype(np.float32)
        latents = rng.normal(size=(4096 + count, rank + rope)).astype(np.float32)
        out = np.empty((count, HEADS * v), np.float32)
        sizes = 0, HEADS, nope, rope, v, rank
        work = HEADS * count * 2.0 * ((nope + v) * rank + (4096 + count / 2) * (2 * rank + rope))
        shares = []
        for _ in range(max(3, repeat // 40)):
            start = clock()
            _multiply(block, 1_000_000)
            middle = clock()
            mla_attend(WeightFormat.BF16, weights.ctypes.data, *sizes, q, latents, 4096, out)
            peak = 16 * 32 * 1e6 / (middle - start) * runtime.threads()
            shares.append(work / (clock() - middle) / peak)
        limit = {1: 0.35, 8: 0.5, 64: 0.5}[count]
        verdict(f"{count} rows (peak {peak / 1e9:.0f} GFLOP/s)", statistics.median(shares), "", limit, True)


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1, help="for the recurrence and attention")
    options = parser.parse_args()
    runtime.set_threads(1)
    functions(options.repeat)
    for count in (1, 64):
        rows(count, max(5, options.repeat // 4))
    runtime.set_threads(options.threads)
    recurrence(options.repeat)
    attention(options.repeat)


if __name__ == "__main__":
    main()
