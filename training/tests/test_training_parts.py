"""The training code against plain forms of the same mathematics."""

import numpy as np
import pytest
import torch
from training.attention import attention
from training.delta import delta_rule, delta_rule_plain
from training.experts import grouped_experts
from training.model import Model, Packed, as_stored, initial
from training.optimiser import orthogonal
from training.quantise import dequantise_mxfp4, pack_nibbles, quantise_mxfp4, to_mxfp4
from training.shape import SHAPE

STARTS = np.array([0, 7, 40, 53])


def _inputs(rows: int, seed: int = 0) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    q, k, v, z = (torch.randn(rows, 4, 32, generator=draw) for _ in range(4))
    k = k / k.norm(dim=-1, keepdim=True)
    decay = torch.exp(-5 * torch.sigmoid(2 * z - 3))
    beta = torch.sigmoid(torch.randn(rows, 4, generator=draw))
    return [x.requires_grad_() for x in (q, k, v, decay, beta)]


def test_the_delta_rule_and_its_gradient_are_the_plain_recurrence_in_float64():
    fast, plain = _inputs(53), [x.detach().double().requires_grad_() for x in _inputs(53)]
    weight = torch.randn(53, 4, 32, generator=torch.Generator().manual_seed(1))
    out, wanted = delta_rule(*fast, STARTS), delta_rule_plain(*plain, STARTS)
    (out * weight).sum().backward()
    (wanted * weight).sum().backward()
    assert (out - wanted).abs().max() < 1e-5
    for a, b in zip(fast, plain, strict=True):
        assert (a.grad - b.grad).abs().max() < 1e-5 * (1 + b.grad.abs().max())


def test_attention_sees_earlier_rows_of_its_own_document_only():
    draw = torch.Generator().manual_seed(2)
    q, k = (torch.randn(53, 2, 48, generator=draw, requires_grad=True) for _ in range(2))
    v = torch.randn(53, 2, 32, generator=draw, requires_grad=True)
    document = torch.bucketize(torch.arange(53), torch.tensor(STARTS[1:]), right=True)
    seen = (document[:, None] == document) & torch.ones(53, 53, dtype=torch.bool).tril()
    score = torch.einsum("ahd,bhd->hab", q, k) * 0.2
    p = torch.softmax(score.masked_fill(~seen, float("-inf")), -1)
    wanted = torch.einsum("hab,bhd->ahd", p, v)
    weight = torch.randn(53, 2, 32, generator=draw)
    want = torch.autograd.grad((wanted * weight).sum(), (q, k, v))
    out = attention(q, k, v, STARTS, 0.2)
    have = torch.autograd.grad((out * weight).sum(), (q, k, v))
    assert torch.allclose(out, wanted, atol=1e-5)
    for a, b in zip(have, want, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_grouped_experts_are_the_weighted_sum_of_the_chosen_ones():
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(20, 64, generator=draw, requires_grad=True)
    w1, w3 = (torch.randn(16, 32, 64, generator=draw, requires_grad=True) for _ in range(2))
    w2 = torch.randn(16, 64, 32, generator=draw, requires_grad=True)
    chosen = torch.rand(20, 16, generator=draw).topk(4, 1).indices
    weight = torch.rand(20, 4, generator=draw, requires_grad=True)

    def glu(gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, -1)
        return torch.tanh(gate) * up

    rows = []
    for n in range(20):
        parts = []
        for j in range(4):
            e = chosen[n, j]
            parts.append(weight[n, j] * (w2[e] @ glu(torch.cat((w1[e] @ x[n], w3[e] @ x[n])))))
        rows.append(sum(parts))
    wanted = torch.stack(rows)
    out = grouped_experts(x, chosen, weight, w1, w2, w3, glu)
    assert torch.allclose(out, wanted, rtol=1e-4, atol=1e-3)
    leaves = (x, w1, w2, w3, weight)
    want = torch.autograd.grad(wanted.square().sum(), leaves)
    have = torch.autograd.grad(out.square().sum(), leaves)
    for a, b in zip(have, want, strict=True):
        assert (a - b).abs().max() < 1e-4 * b.abs().max()


def test_mxfp4_is_the_nearest_value_and_survives_its_bytes():
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(4)) * 0.3
    codes, scales = quantise_mxfp4(weight)
    stored = dequantise_mxfp4(codes, scales)
    assert torch.equal(stored, to_mxfp4(weight))
    assert torch.equal(to_mxfp4(stored), stored), "stored values are kept"
    groups = weight.view(64, 3, 32)
    unit = torch.ldexp(torch.ones(64, 3), scales.int() - 127)[..., None]
    assert bool((groups.abs() <= 6 * unit).all()), "nothing is cut off"
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat((values, -values)) * unit[..., None]
    nearest = (groups[..., None] - values).abs().amin(-1)
    assert torch.allclose((groups - stored.view(64, 3, 32)).abs(), nearest)
    packed = pack_nibbles(codes)
    assert torch.equal(packed[:, 0] & 15, codes[:, 0])
    assert torch.equal(packed[:, 0] >> 4, codes[:, 1])


def test_orthogonal_steps_have_even_singular_values():
    moved = orthogonal(torch.randn(3, 128, 32, generator=torch.Generator().manual_seed(5)))
    singular = torch.linalg.svdvals(moved)
    assert singular.min() > 0.3
    assert singular.max() < 1.4


@pytest.mark.parametrize("cut", [1, 30])
def test_logits_of_a_document_do_not_depend_on_its_company(cut: int):
    weights, model = as_stored(initial(SHAPE, 3)), Model(SHAPE)
    ids = torch.randint(0, 2048, (40,), generator=torch.Generator().manual_seed(6)).tolist()
    alone = model.logits(weights, Packed.of([ids]))
    packed = model.logits(weights, Packed.of([ids[:cut], ids, ids[::-1]]))[cut : cut + 40]
    assert torch.allclose(alone, packed, atol=2e-4)
    shorter = model.logits(weights, Packed.of([ids[:cut]]))
    assert torch.allclose(alone[:cut], shorter, atol=2e-4)
