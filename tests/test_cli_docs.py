"""docs/CLI.md is what the commands say of themselves."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from kimistream.cli.app import EXAMPLES, app, run_app

ROOT = Path(__file__).parents[1]
COMMANDS = [name for name in app if not name.startswith("-")]


def made_page() -> str:
    spec = importlib.util.spec_from_file_location("make_cli_docs", ROOT / "scripts" / "make_cli_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.page())


def test_the_page_of_commands_is_the_one_the_script_makes():
    assert (ROOT / "docs" / "CLI.md").read_text(encoding="utf-8") == made_page(), (
        "run scripts/make_cli_docs.py"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_help_tells_every_option_of_the_page_and_the_page_every_option_of_the_help(name, capsys):
    assert run_app([name, "--help"]) == 0
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", capsys.readouterr().out))
    section = made_page().split(f"\n## {name}\n")[1].split("\n## ")[0]
    listed = set(re.findall(r"`(--[a-z-]+)", section))
    assert listed
    assert listed <= told
    # what help shows beside: options named in texts, and the negative forms of switches
    options = {o for o in told if not o.startswith(("--no-", "--empty-"))}
    assert {o for o in options if f"`{o}" not in section} <= set(re.findall(r"--[a-z-]+", section))


def test_every_command_has_an_example_that_names_it():
    for name in COMMANDS:
        assert f"kimistream {name}" in EXAMPLES[name]
