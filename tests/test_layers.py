"""Imports go down only (DESIGN section 3)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "kimistream"
ANYWHERE = {"errors", "budget"}
BELOW = {
    "cli": {"server", "engine", "model", "kernels", "stream", "checkpoint", "text", "demo"},
    "server": {"engine", "model", "kernels", "stream", "checkpoint", "text"},
    "engine": {"model", "kernels", "stream", "checkpoint", "text"},
    "model": {"kernels", "stream", "checkpoint"},
    "stream": set(),
    "kernels": {"checkpoint.formats"},
    "checkpoint": set(),
    "text": set(),
    "demo": set(),
}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE)


def imported(path: Path) -> set[str]:
    """The kimistream modules a file imports, without the package's name."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level < 2, f"{path} reaches out of its package by dots"
            if node.level == 0 and node.module == "kimistream":
                names |= {alias.name for alias in node.names}
            elif node.level == 0 and node.module and node.module.startswith("kimistream."):
                names.add(node.module.removeprefix("kimistream."))
        elif isinstance(node, ast.Import):
            used = {alias.name for alias in node.names if alias.name.startswith("kimistream.")}
            names |= {name.removeprefix("kimistream.") for name in used}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_from_layers_below(path):
    layer = path.relative_to(PACKAGE).parts[0]
    for name in imported(path):
        top = name.split(".")[0]
        allowed = (
            top == layer
            or top in ANYWHERE
            or top in BELOW[layer]
            or name in BELOW[layer]
            or (layer == "cli" and name == "__version__")
        )
        assert allowed, f"{path.relative_to(PACKAGE)} imports {name}, which is not below {layer}"


def test_the_top_package_imports_nothing_heavy():
    names = {n for n in imported(PACKAGE / "__init__.py") if n.split(".")[0] not in ANYWHERE}
    assert names == {"engine.model"}
    source = (PACKAGE / "__init__.py").read_text()
    assert "\nfrom kimistream.engine" not in source


def test_no_module_is_called_utils():
    assert not [p for p in PACKAGE.rglob("*.py") if p.stem in {"utils", "util", "helpers", "misc"}]
