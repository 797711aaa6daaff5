"""Writes docs/CLI.md from the commands themselves: what `kimistream COMMAND --help` tells, as a page.

    python scripts/make_cli_docs.py

A test holds the page against the commands, so it cannot fall behind.
"""

from __future__ import annotations

import inspect
import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from kimistream.cli.app import EXAMPLES, app

PAGE = Path(__file__).parents[1] / "docs" / "CLI.md"
HEAD = """# Commands

Made by `scripts/make_cli_docs.py` from the commands' own help; do not edit by hand.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 refused or failed, 2 an option that
cannot be used, 130 interrupted.
"""
KINDS = {"int": "N", "float": "X", "str": "TEXT", "Path": "FILE"}
DIRECTORIES = {"--also": "DIR"}
FIRST = ("Arguments", "Parameters")
"""The groups that need no heading of their own."""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(section(name) for name in app if not name.startswith("-"))


def section(name: str) -> str:
    """One command: its summary, its options group by group, an example."""
    command = app[name]
    arguments = [a for a in command.assemble_argument_collection(parse_docstring=True) if a.show]
    positional = [a for a in arguments if not a.names[0].startswith("-")]
    doc = inspect.cleandoc(command.default_command.__doc__ or "")
    usage = " ".join(a.names[0] if a.required else f"[{a.names[0]}]" for a in positional)
    lines = [f"\n## {name}\n", f"    kimistream {name} {usage} [OPTIONS]".replace("  [", " [") + "\n"]
    lines.append(doc.partition("\nParameters\n")[0].rstrip() + "\n")
    groups: dict[str, list[Any]] = {}
    for argument in arguments:
        groups.setdefault(argument.parameter.group[0].name, []).append(argument)
    for group in sorted(groups, key=lambda g: (g not in FIRST, list(groups).index(g))):
        if group not in FIRST:
            lines.append(f"\n**{group}**\n")
        lines += [entry(argument) for argument in groups[group]]
    if name in EXAMPLES:
        lines.append(f"\nFor example:\n\n    {EXAMPLES[name]}\n")
    return "\n".join(lines).replace("\n\n\n", "\n\n")


def entry(argument: Any) -> str:
    """One option: its names, the kind of its value, its help, its default."""
    kind = DIRECTORIES.get(argument.names[0]) or value_kind(argument.hint)
    names = ", ".join(f"`{n} {kind}`" if n.startswith("--") and kind else f"`{n}`" for n in argument.names)
    text = " ".join((argument.parameter.help or "").split())
    if not text:
        raise SystemExit(f"{argument.names[0]} has no help text")
    default = argument.field_info.default
    shown = isinstance(default, int | float | str) and not isinstance(default, bool) and default != ""
    return f"- {names}: {text}" + (f" (default: {default})" if shown else "")


def value_kind(hint: Any) -> str:
    """What to write behind an option; empty for a switch."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(h for h in get_args(hint) if h is not type(None))
    if get_origin(hint) in (list, tuple):
        hint = get_args(hint)[0]
    return "" if hint is bool else KINDS.get(getattr(hint, "__name__", ""), "VALUE")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
