"""Reads the golden operations of tests/data: `load("rmsnorm_eps1e-5")["x"]`, numpy arrays; bf16 as uint16."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).resolve().parent.parent / "data"
DTYPES = {"F32": np.float32, "I32": np.int32, "U8": np.uint8, "BF16": np.uint16}


@cache
def _everything() -> dict[str, dict[str, Any]]:
    raw = (DATA / "ops.golden.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    ops: dict[str, dict[str, Any]] = {}
    for key, entry in json.loads(raw[8:start]).items():
        if key == "__metadata__":
            continue
        op, _, tensor = key.partition(".")
        first, last = entry["data_offsets"]
        array = np.frombuffer(raw[start + first : start + last], DTYPES[entry["dtype"]])
        ops.setdefault(op, {})[tensor] = array.reshape(entry["shape"])
    return ops


def load(op: str) -> dict[str, Any]:
    """The tensors of one operation, by name."""
    return dict(_everything()[op])


@cache
def _notes() -> dict[str, Any]:
    notes: dict[str, Any] = json.loads((DATA / "ops.golden.json").read_text())
    return notes


def config(op: str) -> dict[str, Any]:
    """The configuration noted beside one operation."""
    return dict(_notes()[op]["config"])


def assert_close(got: Any, want: Any, atol: float, rtol: float = 1e-5) -> None:
    """|got - want| <= atol + rtol |want| everywhere; equal infinities and two NaN agree."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    with np.errstate(all="ignore"):
        good = (np.abs(got - want) <= atol + rtol * np.abs(want)) | (got == want)
    good |= np.isnan(got) & np.isnan(want)
    assert good.all(), f"{(~good).sum()} of {good.size}: {got[~good][:4]} against {want[~good][:4]}"
