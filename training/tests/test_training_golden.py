"""The training code computes what the released model's own code computes (golden/tiny-k3)."""

import json
from pathlib import Path

import numpy as np
import torch
from training.model import Model, Packed, parameter_shapes, stored_form
from training.quantise import dequantise_mxfp4
from training.shape import Shape

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
SHAPE = Shape(
    hidden=160,
    layers=13,
    base_vocab=256,
    q_rank=48,
    dense_inter=320,
    experts=32,
    expert_inter=64,
    latent=96,
    mla_layers=(3, 7, 11, 12),
)


def _tensors(file: Path) -> dict[str, torch.Tensor]:
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    kinds = {"F32": torch.float32, "BF16": torch.bfloat16, "U8": torch.uint8, "I32": torch.int32}
    out = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if entry["dtype"] in kinds and end > begin:
            raw = bytearray(data[8 + size + begin : 8 + size + end])
            out[name] = torch.frombuffer(raw, dtype=kinds[entry["dtype"]]).view(entry["shape"])
    return out


def _experts(stored: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    start, part = name.rsplit(".", 1)
    every = []
    for expert in range(SHAPE.experts):
        at = f"language_model.model.{start}.{expert}.{part}.weight_"
        packed = stored[at + "packed"]
        codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1)
        every.append(dequantise_mxfp4(codes, stored[at + "scale"]))
    return torch.stack(every)


def test_logits_of_the_golden_checkpoint():
    stored: dict[str, torch.Tensor] = {}
    for file in sorted((DATA / "tiny-k3").glob("*.safetensors")):
        stored |= _tensors(file)
    weights = {}
    for name, size in parameter_shapes(SHAPE).items():
        if stored_form(name) == "mxfp4":
            weights[name] = _experts(stored, name)
            continue
        full = "language_model.lm_head" if name == "lm_head" else f"language_model.model.{name}"
        value = stored[full if full in stored else full + ".weight"].float()
        weights[name] = value.flatten()[: size[0]] if name.endswith("A_log") else value
        assert weights[name].shape == size, name
    golden = _tensors(DATA / "tiny-k3.golden.safetensors")
    for prompt in ("p5", "p32", "p130"):
        ids = golden[f"{prompt}.ids"].tolist()
        logits = Model(SHAPE).logits(weights, Packed.of([ids])).numpy()
        error = np.abs(logits - golden[f"{prompt}.logits"].numpy())
        assert error.max() < 5e-4, prompt
        assert np.sqrt((error**2).mean()) < 5e-5, prompt
