"""What one sequence leaves behind: KDA states, convolution tails, MLA latents.

Knows: the shapes, and how to copy, rewind and measure them.
Does not know: how they are computed (kda, mla), or where they are saved.

All of it is float32. A KDA state is `[heads, key, value]` per layer, zero before the first token; a
convolution tail holds the last `kernel - 1` raw inputs of q, k and v, oldest first; a latent is the
normalised key-value latent followed by the shared key part (ARCHITECTURE section 6), one per position.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kimistream.checkpoint.config import ModelConfig
from kimistream.errors import UsageError

Floats = npt.NDArray[np.float32]


class SequenceState:
    """The state of one sequence; `position` tokens have gone through the model.

    kda: float32 `[kda layers, heads, key, value]`; tails: float32 `[kda layers, 3, kernel - 1,
    heads * head_dim]` (q, k, v); latents: float32 `[mla layers, capacity, kv rank + rope]`.
    """

    def __init__(self, config: ModelConfig, capacity: int) -> None:
        shapes = state_shapes(config, capacity)
        # zero pages are touched only when they are written, so an unused context costs nothing
        self.kda: Floats = np.zeros(shapes["kda"], np.float32)
        self.tails: Floats = np.zeros(shapes["tails"], np.float32)
        self.latents: Floats = np.zeros(shapes["latents"], np.float32)
        self.capacity = capacity
        self.position = 0

    def room_for(self, rows: int) -> None:
        """Refuse rows that would not fit the context."""
        if self.position + rows > self.capacity:
            raise UsageError(
                f"the context of {self.capacity} positions is full: {self.position} are used "
                f"and {rows} more were asked for",
                "Ask for fewer tokens, or give a larger --context.",
            )

    def reset(self) -> None:
        """Back to before the first token."""
        self.kda.fill(0)
        self.tails.fill(0)
        self.position = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays at full capacity."""
        return self.kda.nbytes + self.tails.nbytes + self.latents.nbytes


def state_shapes(config: ModelConfig, capacity: int) -> dict[str, tuple[int, ...]]:
    """The array shapes of one sequence's state with `capacity` positions."""
    n_kda = config.layer_kinds.count("kda")
    n_mla = config.layer_kinds.count("mla")
    kda, mla = config.kda, config.mla
    channels = kda.num_heads * kda.head_dim
    return {
        "kda": (n_kda, kda.num_heads, kda.head_dim, kda.head_dim),
        "tails": (n_kda, 3, kda.conv_kernel - 1, channels),
        "latents": (n_mla, capacity, mla.kv_lora_rank + mla.rope_head_dim),
    }


def state_bytes(config: ModelConfig, capacity: int) -> int:
    """Bytes one sequence's state takes at `capacity` positions."""
    return sum(4 * int(np.prod(shape)) for shape in state_shapes(config, capacity).values())
