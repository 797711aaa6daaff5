"""The experts' use as a picture: `python -m training.picture --report FILE --to FILE.svg`.

Knows: a heat map as SVG. Does not know: how the shares were counted (`evaluate`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

CELL = 26
LEFT, TOP = 70, 40


def heat_map(shares: list[list[float]]) -> str:
    """Rows are MoE layers (from layer 1), columns experts; white is unused, dark twice an even share."""
    even = 1 / len(shares[0])
    width, height = LEFT + CELL * len(shares[0]) + 10, TOP + CELL * len(shares) + 34
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
        ' font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="16">Share of each expert (per cent) in each MoE layer; even: {100 * even:.2f}</text>',
    ]
    for expert in range(len(shares[0])):
        out.append(
            f'<text x="{LEFT + CELL * (expert + 0.5)}" y="{TOP - 6}" text-anchor="middle">{expert}</text>'
        )
    for row, layer in enumerate(shares):
        y = TOP + CELL * row
        out.append(f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">layer {row + 1}</text>')
        for expert, share in enumerate(layer):
            depth = min(1.0, share / (2 * even))
            tone = f"rgb({round(255 - 205 * depth)},{round(255 - 150 * depth)},{round(255 - 75 * depth)})"
            x = LEFT + CELL * expert
            ink = "white" if depth > 0.6 else "black"
            out.append(f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" fill="{tone}"/>')
            out.append(
                f'<text x="{x + CELL / 2}" y="{y + 17}" text-anchor="middle" font-size="9" fill="{ink}">'
                f"{100 * share:.1f}</text>"
            )
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the experts' use.")
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    shares = json.loads(options.report.read_text())["routing"]["expert_share"]
    options.to.write_text(heat_map(shares))


if __name__ == "__main__":
    main()
