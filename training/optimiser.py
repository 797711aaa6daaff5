"""How the masters move: Muon for matrices inside the layers, Adam for everything else.

Knows: both rules and which parameter has which. Does not know: the loss, the schedule.

Muon: the step is the momentum's nearest orthogonal matrix, found by a fixed number of Newton-Schulz steps
(Jordan et al., 2024). Matrices of one shape are worked on together.
"""

from __future__ import annotations

import torch

from training.parts import PARTS, shared_like

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
STEPS = 5

ADAM_RATES = {"embed_tokens": 1.5, "lm_head": 0.3}
"""Relative rates; 0.4 for what is not named."""


def uses_muon(name: str, value: torch.Tensor) -> bool:
    last = name.rsplit(".", 1)[-1]
    if value.ndim < 2 or last in ("embed_tokens", "lm_head", "gate"):
        return False
    return not last.endswith(("res_proj", "_conv1d", "b_proj"))


def orthogonal(stack: torch.Tensor) -> torch.Tensor:
    """The nearest semi-orthogonal matrices of `[n, a, b]`, roughly (singular values 0.7 to 1.2)."""
    tall = stack.shape[1] > stack.shape[2]
    x = stack.transpose(1, 2) if tall else stack
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(STEPS):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = a * x + torch.bmm(b * gram + c * torch.bmm(gram, gram), x)
    return x.transpose(1, 2) if tall else x


class Optimiser:
    """State and step for all masters; `state` can be saved and loaded. Masters and state are shared with
    forked processes if the masters are: each part of a step moves its own parameters."""

    def __init__(self, masters: dict[str, torch.Tensor]) -> None:
        self.masters = masters
        moved = [name for name in masters if not name.endswith("e_score_correction_bias")]
        adam = [name for name in moved if not uses_muon(name, masters[name])]
        shapes = {f"m/{name}": tuple(masters[name].shape) for name in moved}
        self.state = shared_like(shapes | {f"v/{name}": tuple(masters[name].shape) for name in adam})
        groups: dict[tuple[int, int], list[str]] = {}
        for name in moved:
            if uses_muon(name, masters[name]):
                rows, columns = masters[name].shape[-2:]
                groups.setdefault((rows, columns), []).append(name)
        self._adam = [adam[part::PARTS] for part in range(PARTS)]
        self._groups = [
            {size: names[part::PARTS] for size, names in groups.items() if names[part::PARTS]}
            for part in range(PARTS)
        ]

    def names(self, part: int) -> list[str]:
        """What `part` moves."""
        return [*(name for names in self._groups[part].values() for name in names), *self._adam[part]]

    @torch.no_grad()
    def step(
        self, part: int, grads: dict[str, torch.Tensor], count: int, muon_rate: float, adam_rate: float
    ) -> None:
        """Move the masters of `part`. `count` is 1 at the first step; `grads` holds a gradient for each
        master that moves (zero where it had no part in the loss)."""
        for (rows, columns), names in self._groups[part].items():
            updates = []
            for name in names:
                m = self.state[f"m/{name}"].mul_(0.95).add_(grads[name], alpha=0.05)
                updates.append((0.05 * grads[name] + 0.95 * m).reshape(-1, rows, columns))
            moved = orthogonal(torch.cat(updates)) * (muon_rate * max(1.0, rows / columns) ** 0.5)
            for name, update in zip(names, moved.split([u.shape[0] for u in updates]), strict=True):
                self.masters[name].sub_(update.reshape(self.masters[name].shape))
        for name in self._adam[part]:
            grad = grads[name]
            m = self.state[f"m/{name}"].mul_(0.9).add_(grad, alpha=0.1)
            v = self.state[f"v/{name}"].mul_(0.95).addcmul_(grad, grad, value=0.05)
            m_hat = m / (1 - 0.9**count)
            v_hat = v / (1 - 0.95**count)
            rate = adam_rate * ADAM_RATES.get(name, 0.4)
            self.masters[name].sub_(rate * m_hat / (v_hat.sqrt() + 1e-8))
