"""Kimi K3 from disk on one ordinary machine, exact and within a memory budget.

import kimistream

with kimistream.open("path/to/checkpoint", memory="8GB") as model:
    for token in model.generate([1008, 10484, 318], max_tokens=4):
        print(token.id, token.cost.seconds)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimistream.errors import KimistreamError

if TYPE_CHECKING:
    from kimistream.engine.model import Model

__version__ = "0.1.0"
__all__ = ["KimistreamError", "Model", "__version__", "open"]


def open(path: str, **options: Any) -> Model:  # the verb of the standard library
    """Open a checkpoint directory; the options are those of `Model.open`."""
    from kimistream.engine.model import Model

    return Model.open(path, **options)


def __getattr__(name: str) -> Any:
    # compiled kernels take a second to load: only who asks for the model pays
    if name == "Model":
        from kimistream.engine.model import Model

        return Model
    raise AttributeError(f"module 'kimistream' has no attribute {name!r}")
