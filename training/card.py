"""The tables of the model card from the report: `python -m training.card --report FILE.json --card FILE.md`.

Knows: which counts stand in which row and column, the aims. Does not know: how anything was counted
(`evaluate`), the words around the tables.

In the card a table stands between `<!-- NAME -->` and `<!-- end -->`; what is between them is written anew.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Counts = dict[str, dict[str, int]]

KINDS = {
    "plain": "trained sentence",
    "plain-held": "held-out sentence",
    "chat": "trained question",
    "chat-held": "held-out question",
    "unseen": "unseen instance",
}
TASKS = [
    "capital",
    "country",
    "continent",
    "after",
    "before",
    "month",
    "opposite",
    "colour",
    "sound",
    "spelling",
    "count",
    "plus",
    "minus",
    "times",
    "reading",
]
TOOLS = ["add", "buy", "find", "get_time", "get_weather", "send_message", "set_timer", "switch_light"]
RELEASED = {
    "shared": (0.34, 0.018),
    "2": (0.94, 0.99),
    "4": (0.83, 0.97),
    "8": (0.67, 0.94),
    "12": (0.57, 0.91),
}
"""What was recorded from the released model (12 consecutive positions of 92 layers), and chance for it."""


def total(counts: Counts, kinds: Iterable[str], field: str = "right") -> tuple[int, int]:
    """Right (or well formed) and asked, over some kinds."""
    found = [counts[kind] for kind in kinds if kind in counts]
    return sum(one[field] for one in found), sum(one["asked"] for one in found)


def _of(right: int, asked: int, *, share: bool = False) -> str:
    if not asked:
        return ""
    text = f"{right} of {asked}"
    return f"**{text} ({100 * right / asked:.0f} %)**" if share else text


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def tasks(report: dict[str, Any]) -> str:
    counts: Counts = report["counts"]
    rows = [[task, *(_of(*total(counts, [f"{kind}/{task}"])) for kind in KINDS)] for task in TASKS]
    every = ["**all**", *(_of(*total(counts, [kind]), share=True) for kind in KINDS)]
    return _table(["task", *KINDS.values()], [*rows, every])


def tools(report: dict[str, Any]) -> str:
    counts: Counts = report["counts"]
    kinds = ("tool", "tool-held")
    rows = [[tool, *(_of(*total(counts, [f"{kind}/{tool}"])) for kind in kinds)] for tool in TOOLS]
    every = ["**all**", *(_of(*total(counts, [kind]), share=True) for kind in kinds)]
    return _table(["tool", "trained wording", "held-out wording"], [*rows, every])


def aims(report: dict[str, Any]) -> str:
    counts: Counts = report["counts"]
    turns = ("chat", "chat-held", "json", "tool", "tool-held")
    lines = (
        ("95 % of trained facts, in trained sentences", 0.95, total(counts, ["plain"])),
        ("the same, in trained questions of a conversation", 0.95, total(counts, ["chat"])),
        ("80 % of held-out paraphrases, sentences", 0.80, total(counts, ["plain-held"])),
        ("the same, questions of a conversation", 0.80, total(counts, ["chat-held"])),
        ("90 % well-formed turns", 0.90, total(counts, turns, "formed")),
        ("90 % right tool calls on 200 held-out ones", 0.90, total(counts, ["tool", "tool-held"])),
    )
    rows = [
        [
            aim,
            f"{'yes' if right >= least * asked else '**no**'}: {100 * right / asked:.1f} % ({right} of {asked})",
        ]
        for aim, least, (right, asked) in lines
    ]
    return _table(["aim", "reached"], rows)


def locality(report: dict[str, Any]) -> str:
    routing = report["routing"]
    chance = 4 / 16
    rows = [
        [
            "share of a position's experts that the one before used",
            f"{100 * routing['shared_with_previous']:.0f} %",
            f"{100 * chance:.0f} %",
            *(f"{100 * value:.3g} %" for value in RELEASED["shared"]),
        ]
    ]
    for n, mean in routing["union"].items():
        even = (1 - (1 - chance) ** int(n)) / (chance * int(n))
        name = f"union of {n}" + (" positions, of all their choices" if n == "2" else "")
        rows.append([name, f"{mean:.2f}", f"{even:.2f}", *(f"{value:.2f}" for value in RELEASED[n])])
    return _table(["", "embedded", "chance", "released K3", "chance"], rows)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "tasks": tasks,
    "tools": tools,
    "aims": aims,
    "locality": locality,
}


def filled(card: str, report: dict[str, Any]) -> str:
    """The card with its tables written anew."""
    for name, make in TABLES.items():
        place = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end -->)", re.DOTALL)
        text = make(report)
        card, found = place.subn(lambda _, text=text: text, card)
        if found != 1:
            raise SystemExit(f"the card has {found} places for the table {name}; mark one")
    return card


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the tables of the model card.")
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--card", type=Path, required=True)
    options = parser.parse_args()
    report = json.loads(options.report.read_text())
    options.card.write_text(filled(options.card.read_text(encoding="utf-8"), report), encoding="utf-8")


if __name__ == "__main__":
    main()
