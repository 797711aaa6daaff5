"""docs/ERRORS.md is what the source raises, and every failure says what to do next."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kimistream import errors

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_error_docs", ROOT / "scripts" / "make_error_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_of_errors_is_the_one_the_script_makes(maker):
    page = (ROOT / "docs" / "ERRORS.md").read_text(encoding="utf-8")
    assert page == maker.page(), "run scripts/make_error_docs.py"


def test_every_failure_has_a_remedy(maker):
    sites = maker.sites()
    assert len(sites) > 200  # it does find them
    assert not [site for site in sites if site.kind != "Interrupted" and not site.remedy.strip()]


def test_every_failure_names_a_file_an_option_or_a_figure(maker):
    bare = [site for site in maker.sites() if site.kind != "Interrupted" and "{" not in site.what]
    named = ("--", "/", "HF_", "text", "prompt", "session", "reader")
    assert not [site for site in bare if not any(word in site.what for word in named)]


def test_every_class_is_on_the_page_with_its_exit_code_and_is_raised_somewhere(maker):
    page, raised = maker.page(), {site.kind for site in maker.sites()}
    for kind in maker.kinds():
        assert f"## {kind.__name__}\n\nExit code {kind.exit_code}." in page
        assert kind.__name__ in raised
        assert kind.__name__ in str(errors.__doc__)


def test_a_message_is_read_with_its_constants_and_the_functions_that_make_it(maker):
    page = maker.page()
    # a constant of another module, a function that gives the command, a helper that raises for others
    assert "Start without this session: its history can be computed again from the text." in page
    assert (
        "its header alone needs {length} | Fetch it with: kimistream pull {repo} {where} --files {name} |"
        in page
    )
    assert "{file}: {name} is missing; needed: true or false |" in page
