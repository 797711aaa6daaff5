"""How small bands make the matrices of a checkpoint, beside the entropy of the words and the forms that were not taken.

    python benchmarks/band_sizes.py FILE.safetensors ... [--most 30000000]

float32 and float16 are rounded to bfloat16 first. Every form counts 32 bits for an escape, and leaves out headers and
padding, but for `packed`, which is what the bands really take. Matrices of at least 16 rows and 128 columns count.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kimistream.kernels.bands import choose_form
from kimistream.kernels.formats import WeightFormat

Words = npt.NDArray[np.uint16]
ESCAPE_BITS = 32


def rounded(values: npt.NDArray[np.float32]) -> Words:
    """float32 to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def matrices(path: Path, most: int):
    """(name, bfloat16 words [rows, cols]) of the matrices in a file; of a large one its first `most` weights."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    for name, entry in header.items():
        shape = entry.get("shape", [])
        if len(shape) != 2 or shape[0] < 16 or shape[1] < 128 or entry["dtype"] not in ("BF16", "F16", "F32"):
            continue
        rows = min(shape[0], max(16, most // shape[1] // 16 * 16))
        kind = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}[entry["dtype"]]
        data = np.memmap(path, kind, "r", 8 + size + entry["data_offsets"][0], (shape[0], shape[1]))[:rows]
        yield name, np.array(data) if kind == np.uint16 else rounded(data.astype(np.float32))


def entropy(counts: npt.NDArray[np.int64]) -> float:
    """Bits per symbol of an ideal code for these counts."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log2(share)).sum())


def escapes(symbols: npt.NDArray[np.int64], codes: int, rows: int, free: int | None = None) -> float:
    """The share of symbols 0..255 that are not among the `codes` most frequent ones of their run of `rows` rows."""
    runs = np.arange(symbols.shape[0])[:, None] // rows
    counts = np.bincount((runs * 256 + symbols).reshape(-1), minlength=(int(runs.max()) + 1) * 256)
    counts = counts.reshape(-1, 256)
    if free is not None:
        counts[:, free] = 0
    return float(np.sort(counts, axis=1)[:, : 256 - codes].sum()) / symbols.size


def measured(words: Words) -> dict[str, float]:
    """Bits per weight, and shares of escapes, of one matrix."""
    rows, cols = words.shape
    form = choose_form(WeightFormat.BF16, words.ctypes.data, rows, cols)
    high, exponent = (words >> 8).astype(np.int64), ((words >> 7) & 255).astype(np.int64)
    rate = escapes(high, 15, 16, 0)
    return {
        "packed": form.bands(rows) * form.nbytes * 8 / words.size,
        "escapes": rate,
        "entropy of words": entropy(np.bincount(words.reshape(-1), minlength=65536)),
        "8 + entropy of exponents": 8 + entropy(np.bincount(exponent.reshape(-1), minlength=256)),
        "12, high bytes, a table per band": 12 + ESCAPE_BITS * rate,
        "12, high bytes, a table per row": 12 + ESCAPE_BITS * escapes(high, 15, 1, 0),
        "12, high bytes, one table": 12 + ESCAPE_BITS * escapes(high, 15, rows, 0),
        "12, exponents, a table per band": 12 + ESCAPE_BITS * escapes(exponent, 15, 16),
        "11, exponents, a table per band": 11 + ESCAPE_BITS * escapes(exponent, 7, 16),
        "11, exponents, a table per row": 11 + ESCAPE_BITS * escapes(exponent, 7, 1),
        "escapes of 11": escapes(exponent, 7, 16),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--most", type=int, default=30_000_000, help="weights looked at in one matrix")
    parser.add_argument("--each", action="store_true", help="a line for each matrix")
    options = parser.parse_args()
    total, weights = {}, 0
    for path in options.files:
        for name, words in matrices(path, options.most):
            figures = measured(words)
            if options.each:
                print(
                    f"{figures['packed']:7.3f} bits, {figures['escapes']:.1e} escapes  {words.shape}  {name}"
                )
            for key, value in figures.items():
                total[key] = total.get(key, 0.0) + value * words.size
            weights += words.size
    print(f"{weights / 1e6:.1f} million weights")
    for key, value in total.items():
        figure = value / weights
        print(
            f"{key:<34} {figure:8.2e} of the weights"
            if "escapes" in key
            else f"{key:<34} {figure:8.4f} bits per weight"
        )


if __name__ == "__main__":
    main()
