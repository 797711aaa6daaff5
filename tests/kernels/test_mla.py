"""Absorbed attention over cached latents against float64, the golden layers, and itself cut anywhere."""

from __future__ import annotations

import numpy as np
import ops_golden
import pytest

from kimistream.kernels.bands import BandForm, choose_form, encode_bands
from kimistream.kernels.formats import WeightFormat
from kimistream.kernels.mla import mla_attend, mla_scratch_floats

FORMS = [WeightFormat.BF16, WeightFormat.F32, WeightFormat.F16]
SHAPES = [
    (3, 12, 8, 10, 20),
    (4, 32, 16, 32, 64),
    (3, 32, 16, 48, 64),
    (5, 128, 64, 128, 512),
    (1, 5, 3, 7, 9),
]
"""heads, nope, rope, v, kv_rank"""


def stored(weights, form):
    """The bytes of weights in one form, and the weights as that form has them."""
    if form == WeightFormat.F32:
        return weights.tobytes(), weights
    if form == WeightFormat.F16:
        with np.errstate(over="ignore"):
            half = weights.astype(np.float16)
        return half.tobytes(), half.astype(np.float32)
    bits = (weights.view(np.uint32) >> 16).astype(np.uint16)
    return bits.tobytes(), (bits.astype(np.uint32) << 16).view(np.float32)


def reference(shape, weights, q, latents, pos0):
    heads, nope, rope, v, rank = shape
    weights = weights.astype(np.float64).reshape(heads, nope + v, rank)
    q = q.astype(np.float64).reshape(len(q), heads, nope + rope)
    c, shared = np.split(latents[: pos0 + len(q)].astype(np.float64), [rank], axis=1)
    unseen = np.arange(len(c)) > pos0 + np.arange(len(q))[:, None]
    out = np.empty((len(q), heads, v))
    for h in range(heads):
        keys = np.concatenate([c @ weights[h, :nope].T, shared], 1)
        score = np.where(unseen, -np.inf, q[:, h] @ keys.T * (nope + rope) ** -0.5)
        p = np.exp(score - score.max(1, keepdims=True))
        out[:, h] = (p / p.sum(1, keepdims=True)) @ (c @ weights[h, nope:].T)
    return out.reshape(len(q), -1)


def drawn(shape, rows, seed, sharp=1.0):
    heads, nope, rope, v, rank = shape
    rng = np.random.default_rng(seed)
    weights = (rng.normal(size=(heads * (nope + v), rank)) / np.sqrt(rank)).astype(np.float32)
    q = (sharp * rng.normal(size=(rows, heads * (nope + rope)))).astype(np.float32)
    return weights, q, rng.normal(size=(rows, rank + rope)).astype(np.float32)


def attend(shape, form, address, q, latents, pos0=0, heads=None, out=None):
    all_heads, nope, rope, v, rank = shape
    first, last = heads or (0, all_heads)
    out = np.full((len(q), all_heads * v), np.nan, np.float32) if out is None else out
    mla_attend(form, address, first, last, nope, rope, v, rank, q, latents, pos0, out)
    return out


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape_and_form_from_any_address_reading_nothing_beyond(shape, form, guarded):
    weights, q, latents = drawn(shape, 70, shape[0])
    raw, weights = stored(weights, form)
    out = attend(shape, form, guarded(raw), q, latents)
    ops_golden.assert_close(out, reference(shape, weights, q, latents, 0), 5e-6)
    odd = np.zeros(len(raw) + 1, np.uint8)
    odd[1:] = np.frombuffer(raw, np.uint8)
    np.testing.assert_array_equal(attend(shape, form, odd.ctypes.data + 1, q, latents), out)


@pytest.mark.parametrize("shape", SHAPES)
def test_runs_of_rows_and_parts_of_heads_give_the_same_bits(shape):
    heads, nope, _, v, rank = shape
    weights, q, latents = drawn(shape, 150, 9)
    raw, _ = stored(weights, WeightFormat.BF16)
    buffer = np.frombuffer(raw, np.uint8)
    whole = attend(shape, WeightFormat.BF16, buffer.ctypes.data, q, latents)
    head_bytes = (nope + v) * rank * 2
    for runs in ([1, 2, 3, 4, 5, 6, 7, 8, 9, 105], [63, 1, 1, 64, 21], [33, 117], [100] + [1] * 50):
        out, at = np.empty_like(whole), 0
        for n in runs:
            seen = np.full_like(latents, np.nan)  # what is not stored yet must not be read
            seen[: at + n] = latents[: at + n]
            cut = n % (heads + 1)
            for part in ((0, cut), (cut, heads)):
                address = buffer.ctypes.data + part[0] * head_bytes
                attend(shape, WeightFormat.BF16, address, q[at : at + n], seen, at, part, out[at : at + n])
            at += n
        np.testing.assert_array_equal(out.view(np.uint32), whole.view(np.uint32))


def test_the_number_of_threads_and_the_scratch_change_nothing(with_threads):
    shape = (24, 16, 16, 16, 32)
    weights, q, latents = drawn(shape, 70, 3)
    results = []
    for threads in (1, 2):
        with_threads(threads)
        results.append(attend(shape, WeightFormat.F32, weights.ctypes.data, q, latents))
        scratch = np.full(mla_scratch_floats(70, 24, 32, 16), np.nan, np.float32)
        out = np.empty_like(results[0])
        mla_attend(1, weights.ctypes.data, 0, 24, 16, 16, 16, 32, q, latents, 0, out, scratch)
        results.append(out)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_very_sharp_scores_neither_overflow_nor_lose_the_best_position():
    shape = (2, 16, 16, 16, 32)
    weights, q, latents = drawn(shape, 300, 4, sharp=300.0)
    out = attend(shape, WeightFormat.F32, weights.ctypes.data, q, latents)
    assert np.isfinite(out).all()
    want = reference(shape, weights, q, latents, 0)
    assert np.abs(out - want).max() < 2e-2  # scores of hundreds carry their own rounding into the weights
    assert np.median(np.abs(out - want)) < 1e-5


@pytest.mark.parametrize("name", ["mla", "mla_small_latent", "mla_nogate_noqlora"])
@pytest.mark.parametrize("runs", [[7], [5, 1, 1]])
def test_the_golden_layers_around_the_kernel(name, runs):
    op = {key.removeprefix("w."): value for key, value in ops_golden.load(name).items()}

    def product(x, key):
        return x.astype(np.float64) @ op[f"{key}.weight"].astype(np.float64).T

    def rms(x, key):
        return op[f"{key}.weight"] * x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    shape = heads, _, rope, v, rank = (3, 12, 8, 10, 20)
    x = op["x"]
    q = (
        product(rms(product(x, "q_a_proj"), "q_a_layernorm"), "q_b_proj")
        if "q_a_proj.weight" in op
        else product(x, "q_proj")
    )
    c = product(x, "kv_a_proj_with_mqa")
    latents = np.concatenate([rms(c[:, :rank], "kv_a_layernorm"), c[:, rank:]], 1).astype(np.float32)
    ops_golden.assert_close(latents, np.concatenate([op["latent"], op["k_rope"]], 1), 5e-6)
    kv_b, q, at = np.ascontiguousarray(op["kv_b_proj.weight"]), q.astype(np.float32), 0
    o = np.empty((7, heads * v), np.float32)
    for n in runs:
        attend(shape, WeightFormat.F32, kv_b.ctypes.data, q[at : at + n], latents, at, None, o[at : at + n])
        at += n
    gate = 1 / (1 + np.exp(-product(x, "g_proj"))) if "g_proj.weight" in op else 1.0
    ops_golden.assert_close(product(o * gate, "o_proj"), op["y"], 5e-6)
    ops_golden.assert_close(product(o * gate, "o_proj"), op["y_cached"], 5e-6)
    assert rope == latents.shape[1] - rank


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(5, 128, 64, 128, 512), (4, 12, 8, 20, 250), (3, 16, 16, 48, 1000)])
def test_weights_in_bands_give_the_same_bits(shape, form):
    heads, nope, rope, v, rank = shape
    weights, q, latents = drawn(shape, 70, 11)
    weights[np.random.default_rng(12).random(weights.shape) < 0.001] *= 1e12
    raw = np.frombuffer(stored(weights, form)[0], np.uint8)
    plain = attend(shape, form, raw.ctypes.data, q, latents)
    kinds = [BandForm(form, rank)]
    if form == WeightFormat.BF16:
        kinds.append(choose_form(form, raw.ctypes.data, heads * (nope + v), rank))
        assert kinds[1].escape_room > 0
    for kind in kinds:
        memory = np.zeros(kind.bands(heads * (nope + v)) * kind.nbytes, np.uint8)
        encode_bands(kind, raw.ctypes.data, heads * (nope + v), memory.ctypes.data)
        for first, last in ((0, heads), (1, heads - 1)):
            out = np.zeros_like(plain)
            start = memory.ctypes.data + first * (nope + v) // 16 * kind.nbytes
            mla_attend(form, start, first, last, nope, rope, v, rank, q, latents, 0, out, form=kind)
            part = slice(first * v, last * v)
            np.testing.assert_array_equal(out[:, part], plain[:, part])
