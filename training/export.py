"""Masters to a checkpoint in the released layout: `python -m training.export --run DIR --to DIR`.

Knows: names, stored types, the order inside a shard, padding of `A_log` (ARCHITECTURE section 2).
Does not know: how the weights came about.

The released order is kept: float32 tensors of a layer, its bf16 tensors, then each expert's six tensors
back to back. Layers lie in one shard for each block, embedding, head and last norms in the last one.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import torch

from training.model import stored_form
from training.quantise import pack_nibbles, quantise_mxfp4
from training.shape import SHAPE, Shape, config_json

A_LOG_ENTRIES = 32
"""As in the released file, `A_log` is longer than there are heads; the rest is zero."""

PREFIX = "language_model.model."


def _stored(name: str, value: torch.Tensor) -> tuple[str, np.ndarray]:
    """Dtype name and bytes' array of a dense parameter."""
    if stored_form(name) == "f32":
        if name.endswith("A_log"):
            value = torch.cat((value, torch.zeros(A_LOG_ENTRIES - len(value))))
        return "F32", value.contiguous().numpy()
    return "BF16", value.to(torch.bfloat16).contiguous().view(torch.int16).numpy()


def _full_name(name: str) -> str:
    if name == "lm_head":
        return "language_model.lm_head.weight"
    bare = name.endswith(("A_log", "dt_bias", "e_score_correction_bias"))
    return f"{PREFIX}{name}" + ("" if bare else ".weight")


def _layer_entries(masters: dict[str, torch.Tensor], layer: int, shape: Shape):
    start = f"layers.{layer}."
    dense = [name for name in masters if name.startswith(start) and stored_form(name) != "mxfp4"]
    for form in ("f32", "bf16"):
        for name in sorted(name for name in dense if stored_form(name) == form):
            yield (_full_name(name), *_stored(name, masters[name]))
    if not shape.is_moe(layer):
        return
    parts = {
        part: quantise_mxfp4(masters[f"{start}block_sparse_moe.experts.{part}"])
        for part in ("w1", "w2", "w3")
    }
    for expert in range(shape.experts):
        for part, (codes, scales) in parts.items():
            name = f"{PREFIX}{start}block_sparse_moe.experts.{expert}.{part}.weight_"
            yield name + "packed", "U8", pack_nibbles(codes[expert]).contiguous().numpy()
            yield name + "scale", "U8", scales[expert].contiguous().numpy()


def _write_shard(path: Path, entries: list[tuple[str, str, np.ndarray]]) -> int:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, array in entries:
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for _, _, array in entries:
            file.write(array.tobytes())
    return at


def export(masters: dict[str, torch.Tensor], vocabulary: Path, to: Path, shape: Shape = SHAPE) -> None:
    """Write config, vocabulary, shards and index into the directory `to`."""
    to.mkdir(parents=True, exist_ok=True)
    shards = [
        [
            entry
            for layer in range(first, first + shape.block)
            for entry in _layer_entries(masters, layer, shape)
        ]
        for first in range(0, shape.layers, shape.block)
    ]
    top = sorted(name for name in masters if not name.startswith("layers."))
    shards.append([(_full_name(name), *_stored(name, masters[name])) for name in top])
    weight_map: dict[str, str] = {}
    total = 0
    for number, entries in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):06d}.safetensors"
        total += _write_shard(to / file, entries)
        weight_map |= {name: file for name, _, _ in entries}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (to / "model.safetensors.index.json").write_text(json.dumps(index, separators=(",", ":")) + "\n")
    (to / "config.json").write_text(json.dumps(config_json(shape), indent=2) + "\n")
    for name in ("tiktoken.model", "tokenizer_config.json"):
        shutil.copyfile(vocabulary / name, to / name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Export a training run as a checkpoint.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    export(torch.load(options.run / "state.pt")["masters"], options.run, options.to)


if __name__ == "__main__":
    main()
