"""`verify --golden`: the published results of the released model, computed anew and compared.

Knows: the published prompts, ids and logits (ARCHITECTURE section 11), and how near is near enough.
Does not know: how tokens are computed; it opens the checkpoint like any run.

A right sha256 says that the bytes are the published ones; this says that this engine, on this machine,
computes with them what others computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.config import ModelConfig, parse_config
from kimistream.checkpoint.released import Sizes, config_tree
from kimistream.checkpoint.table import Checkpoint
from kimistream.errors import CheckpointError, ConfigError

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Published:
    """Results to compare with. Greedy, float32 activations, no chat format.

    `prompt` continues with `continuation`; the logits after `logits_prompt` are `logits` at some ids, the
    largest of all at `argmax`. `tolerance`: how far a logit may be off.
    """

    prompt: tuple[int, ...]
    continuation: tuple[int, ...]
    logits_prompt: tuple[int, ...]
    argmax: int
    logits: Mapping[int, float]
    tolerance: float


RELEASED = Published(
    prompt=(1008, 10484, 318, 15383, 387),
    continuation=(17374, 20829, 10, 427, 414, 1008, 606, 142957),
    logits_prompt=(3, 4, 5, 6, 7),
    argmax=2494,
    logits={
        2494: 15.021948, 220: 12.808809, 15: 12.729645, 382: 12.638526, 16: 12.299946, 19081: 12.099145,
        397: 12.066601, 17: 12.004007, 87: 11.973339, 701: 11.825319, 1282: 11.765984, 18: 11.694201,
        0: 9.164494, 8192: 2.035398, 16384: -0.937632, 24576: 8.538456, 32768: -1.113366, 40960: -0.493393,
        49152: -0.022192, 57344: 0.939741, 65536: -0.574353, 73728: 1.055630, 81920: -1.753791,
        90112: -0.445173, 98304: -1.581045, 106496: -2.718466, 114688: -0.202645, 122880: 0.681254,
        131072: -2.706711, 139264: 0.339463, 147456: -3.005037, 155648: -1.373150,
    },
    tolerance=5e-3,
)  # fmt: skip
"""Of the released weights: the twelve largest logits, and every 8192nd.

Another float32 engine came within 8e-6 of them; it took 1e-5 for the eps of two norms where the model's own
code has 1e-6, which moves logits by more than that, and a wrong weight or formula by far more than 5e-3.
"""


@dataclass(frozen=True, slots=True)
class GoldenResult:
    """What was computed, beside what is published. `worst`: the largest difference of a logit."""

    ids: tuple[int, ...]
    expected_ids: tuple[int, ...]
    argmax: int
    expected_argmax: int
    worst: float
    worst_id: int
    tolerance: float

    @property
    def same(self) -> bool:
        return (
            self.ids == self.expected_ids
            and self.argmax == self.expected_argmax
            and self.worst <= self.tolerance
        )

    def lines(self) -> list[str]:
        """The comparison in words."""
        words = []
        if self.ids == self.expected_ids:
            words.append(f"the published prompt continues with the published {len(self.ids)} tokens")
        else:
            at = next(i for i, (a, b) in enumerate(zip(self.ids, self.expected_ids, strict=True)) if a != b)
            words.append(
                f"token {at + 1} after the published prompt is {self.ids[at]}, published: {self.expected_ids[at]}"
            )
        words.append(
            f"the largest logit is at id {self.argmax}, published: {self.expected_argmax}; logits differ by up "
            f"to {self.worst:.2g} (at id {self.worst_id}), allowed: {self.tolerance:g}"
        )
        return words


def released_config() -> ModelConfig:
    """The configuration of the released model."""
    return parse_config(msgspec.json.encode(config_tree(Sizes())), "the released config.json")


def refuse_another_model(config: ModelConfig, directory: Path) -> None:
    """Raise ConfigError, with the sizes that differ, for a model that the results are not of."""
    different = list(_differences("", config, released_config()))
    if different:
        more = f" and {len(different) - 3} more" if len(different) > 3 else ""
        raise ConfigError(
            f"{directory} is not the released Kimi K3: {'; '.join(different[:3])}{more}",
            "--golden compares with results that were published for the released model only; "
            "`kimistream verify --deep` checks any checkpoint.",
        )


def _differences(path: str, mine: Any, released: Any) -> Any:
    if is_dataclass(mine) and type(mine) is type(released):
        for field in fields(mine):
            name = f"{path}.{field.name}" if path else field.name
            yield from _differences(name, getattr(mine, field.name), getattr(released, field.name))
    elif mine != released:
        if isinstance(mine, tuple) and len(mine) > 4:
            yield f"{path} differ"
        else:
            yield f"{path} is {mine}, released: {released}"


def run_golden(
    checkpoint: str | Path | Checkpoint,
    *,
    memory: int | str | None = None,
    published: Published = RELEASED,
    note: Callable[[str], None] | None = None,
) -> GoldenResult:
    """Compute the published results with a checkpoint. Raises what opening and running a model raises."""
    from kimistream.engine.model import Model  # with it come the compiled kernels

    context = max(len(published.prompt) + len(published.continuation), len(published.logits_prompt) + 1)
    rows: list[Floats] = []
    with Model.open(checkpoint, memory=memory, context=context, all_logits=True, note=note) as model:
        vocab = model.config.vocab_size
        if max((*published.prompt, *published.logits_prompt, *published.logits)) >= vocab:
            highest = max((*published.prompt, *published.logits_prompt, *published.logits))
            raise CheckpointError(
                f"{checkpoint}: its vocabulary of {vocab:,} lacks the published id {highest:,}",
                "--golden compares with results that were published for the released model only.",
            )
        tokens = tuple(
            record.id
            for record in model.generate(
                published.prompt, max_tokens=len(published.continuation), ignore_eos=True
            )
        )
        for _ in model.generate(
            published.logits_prompt, max_tokens=1, ignore_eos=True, sink=lambda part: rows.append(part.copy())
        ):
            pass
    logits = np.concatenate(rows)[len(published.logits_prompt) - 1]
    off = {i: abs(float(logits[i]) - value) for i, value in published.logits.items()}
    worst_id = max(off, key=lambda i: off[i])
    return GoldenResult(
        tokens,
        published.continuation,
        int(np.argmax(logits)),
        published.argmax,
        off[worst_id],
        worst_id,
        published.tolerance,
    )
