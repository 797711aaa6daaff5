"""Writes docs/ERRORS.md from the source: every failure kimistream tells, and what it says to do about it.

    python scripts/make_error_docs.py

The classes are those of kimistream.errors; the messages are read off the places that raise them, with the
figures in braces. A test holds the page against the source, so it cannot fall behind.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from kimistream import errors
from kimistream.errors import KimistreamError

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "kimistream"
PAGE = ROOT / "docs" / "ERRORS.md"
HEAD = """# What can go wrong

Made by `scripts/make_error_docs.py` from the source; do not edit by hand.

Every expected failure is one exception of one tree (`kimistream.errors`), with two parts: `what` is wrong, with
the file or the option and the figures on both sides, and the `remedy`, what to do next. The command line prints
both on stderr and ends with the exit code of the class; input never ends in a traceback. Words in braces stand
for what the message names.
"""
WORDS = {
    "error": "reason",
    "strerror": "reason",
    "strerror or error": "reason",
    "describe": "reason",
}
FIGURES = ("format_size", "describe", "_describe", "_rounded_up")
"""Functions whose text is a figure or a reason, not a sentence."""
HANDED = {"how_to_fetch": "kimistream.checkpoint.table", "fetch": "kimistream.checkpoint.fetch"}
"""Makers of remedies that are reached through objects."""


@dataclass
class Scope:
    """What is known at a place of the source: texts behind names, and the functions that make texts."""

    texts: dict[str, ast.expr] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    depth: int = 0


@dataclass(frozen=True)
class Site:
    """One place that raises."""

    module: str
    kind: str
    what: str
    remedy: str


def kinds() -> list[type[KimistreamError]]:
    """The classes of the tree, in the order of the source."""
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, KimistreamError)
    ]


NAMES = {kind.__name__ for kind in kinds()}


@cache
def sites() -> list[Site]:
    """Every place that makes an error, in the order of the files."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
    modules = {_dotted(path): Scope() for path in trees}
    for path, tree in trees.items():
        _collect(tree.body, modules[_dotted(path)])
    methods: dict[str, list[ast.FunctionDef]] = {}  # those that only raise, called from any module
    for tree in trees.values():
        for function in _functions(tree):
            if _only_raises(function) and _is_method(function):
                methods.setdefault(function.name, []).append(function)
    found: list[Site] = []
    for path, tree in trees.items():
        if path.name == "errors.py":
            continue
        module = path.relative_to(SOURCE).with_suffix("").as_posix()
        own = _with_imports(tree, modules[_dotted(path)], modules)
        for name, where in HANDED.items():
            own.functions.setdefault(name, modules[where].functions[name])
        local = {f.name: f for f in _functions(tree) if _only_raises(f) and not _is_method(f)}
        own_methods = {f.name: f for f in _functions(tree) if _only_raises(f) and _is_method(f)}
        theirs = {name: each[0] for name, each in methods.items() if len(each) == 1} | own_methods
        for function in [tree, *_functions(tree)]:
            if isinstance(function, ast.FunctionDef) and _only_raises(function):
                continue  # told at its callers
            scope = Scope(dict(own.texts), dict(own.functions))
            if isinstance(function, ast.FunctionDef):
                _collect(function.body, scope)
            for call in _calls(function):
                found += _sites_of(call, module, scope, local if isinstance(call.func, ast.Name) else theirs)
    return list(dict.fromkeys(found))


def _dotted(path: Path) -> str:
    return ".".join(("kimistream", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def _with_imports(tree: ast.Module, own: Scope, modules: dict[str, Scope]) -> Scope:
    """The texts and functions of a module and those that it imports from others of the package."""
    whole = Scope(dict(own.texts), dict(own.functions))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            other = modules[node.module]
            for alias in node.names:
                name = alias.asname or alias.name
                if alias.name in other.texts:
                    whole.texts.setdefault(name, other.texts[alias.name])
                if alias.name in other.functions:
                    whole.functions.setdefault(name, other.functions[alias.name])
    return whole


def _sites_of(
    call: ast.Call, module: str, scope: Scope, refusers: dict[str, ast.FunctionDef]
) -> Iterator[Site]:
    name = _name(call.func)
    if name in NAMES and isinstance(call.func, ast.Name):
        yield _site(call, module, scope)
    elif name in refusers and isinstance(call.func, ast.Name | ast.Attribute):
        function = refusers[name]
        names = [a.arg for a in function.args.args if a.arg != "self"]
        given = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
        given |= dict(zip(names, call.args, strict=False))
        given |= {k.arg: k.value for k in call.keywords if k.arg}
        inside = Scope(dict(scope.texts), scope.functions)
        _collect(function.body, inside)
        inside.texts |= {n: ast.Constant("".join(_text(value, scope))) for n, value in given.items()}
        for inner in _calls(function):
            if _name(inner.func) in NAMES:
                yield _site(inner, module, inside)


def _site(call: ast.Call, module: str, scope: Scope) -> Site:
    parts = ["".join(_text(part, scope)) for part in call.args[:2]]
    parts += [k.value for k in call.keywords if k.arg == "remedy" for k in ["".join(_text(k.value, scope))]]
    return Site(module, _name(call.func), parts[0] if parts else "", parts[1] if len(parts) > 1 else "")


# ---- from expressions to words


def _text(node: ast.expr, scope: Scope) -> Iterator[str]:
    """An expression that gives a text, with what it fills in as words in braces."""
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from _text(value, scope)
    elif isinstance(node, ast.FormattedValue):
        yield from _text(node.value, scope)
    elif isinstance(node, ast.BinOp) and _is_text(node):
        yield from _text(node.left, scope)
        yield from _text(node.right, scope)
    elif isinstance(node, ast.IfExp):
        yield from _either(node, scope)
    elif isinstance(node, ast.BoolOp):
        yield from _text(node.values[0], scope)
    elif isinstance(node, ast.Name) and node.id in scope.texts and scope.depth < 4:
        deeper = Scope(
            {k: v for k, v in scope.texts.items() if k != node.id}, scope.functions, scope.depth + 1
        )
        yield from _text(scope.texts[node.id], deeper)
    elif (
        isinstance(node, ast.Call)
        and _name(node.func) in scope.functions
        and _name(node.func) not in FIGURES
        and scope.depth < 4
    ):
        function = scope.functions[_name(node.func)]
        inside = Scope(dict(scope.texts), scope.functions, scope.depth + 1)
        _collect(function.body, inside)
        returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
        yield from _text(returned[-1], inside)
    else:
        yield "{" + _word(node) + "}"


def _either(node: ast.IfExp, scope: Scope) -> Iterator[str]:
    first, second = ("".join(_text(side, scope)) for side in (node.body, node.orelse))
    yield first or second


def _word(node: ast.expr) -> str:
    """A short word for what an expression stands for."""
    word = ""
    if isinstance(node, ast.Name):
        word = node.id
    elif isinstance(node, ast.Attribute):
        inner = _word(node.value)
        word = f"{inner} {node.attr}" if node.attr in ("name", "size", "path") and inner else node.attr
        word = word.removeprefix("self ")
    elif isinstance(node, ast.Call):
        name = _name(node.func)
        inner = _word(node.args[0]) if node.args else ""
        if name == "len":
            word = f"number of {inner}"
        elif name == "type":
            word = "type"
        elif isinstance(node.func, ast.Attribute) and all(isinstance(a, ast.Constant) for a in node.args):
            word = _word(node.func.value)
        else:
            word = inner or name
    elif isinstance(node, ast.Subscript | ast.Starred | ast.Await):
        word = _word(node.value)
    elif isinstance(node, ast.BinOp):
        word = _word(node.left) or _word(node.right)
    elif isinstance(node, ast.UnaryOp):
        word = _word(node.operand)
    elif isinstance(node, ast.GeneratorExp | ast.ListComp):
        word = _word(node.generators[0].iter)
    elif isinstance(node, ast.IfExp):
        word = _word(node.body)
    elif isinstance(node, ast.BoolOp):
        word = _word(node.values[0])
    elif isinstance(node, ast.Constant):
        word = str(node.value)
    word = word.strip("_").replace("_", " ").lower()
    return WORDS.get(word, word)


# ---- the source


def _collect(body: list[ast.stmt], scope: Scope) -> None:
    """Texts assigned to names once, and functions that return one text."""
    times: dict[str, int] = {}
    for node in (inner for statement in body for inner in _walk(statement)):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            times[name] = times.get(name, 0) + 1
            if _is_text(node.value):
                scope.texts[name] = node.value
            else:
                scope.texts.pop(name, None)
        elif (
            isinstance(node, ast.FunctionDef)
            and isinstance(node.returns, ast.Name)
            and node.returns.id == "str"
        ):
            returned = [n.value for n in ast.walk(node) if isinstance(n, ast.Return)]
            if returned and (
                _is_text(returned[-1]) or _name(getattr(returned[-1], "func", returned[-1])) in HANDED
            ):
                scope.functions[node.name] = node
    for name, count in times.items():
        if count > 1:
            scope.texts.pop(name, None)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and what is in it, without the bodies of functions."""
    yield node
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        return
    for inner in ast.iter_child_nodes(node):
        yield from _walk(inner)


def _is_text(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add) and (_is_text(node.left) or _is_text(node.right))
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) and _is_text(node.orelse)
    return isinstance(node, ast.JoinedStr)


def _functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _only_raises(function: ast.FunctionDef) -> bool:
    return isinstance(function.returns, ast.Name) and function.returns.id == "NoReturn"


def _is_method(function: ast.FunctionDef) -> bool:
    return bool(function.args.args) and function.args.args[0].arg == "self"


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls of a function, without those of functions inside it, in the order of the source."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            continue
        if isinstance(child, ast.Call):
            yield child
        yield from _calls(child)


def _name(node: ast.expr | None) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


# ---- the page


@cache
def page() -> str:
    """The whole page."""
    found = sites()
    lines = [HEAD, "| class | exit code | when |", "|---|---|---|"]
    for kind in kinds():
        lines.append(f"| [{kind.__name__}](#{kind.__name__.lower()}) | {kind.exit_code} | {_when(kind)} |")
    for kind in kinds():
        parent = kind.__mro__[1].__name__
        above = f" It is a {parent}." if parent != "Exception" else ""
        lines += [f"\n## {kind.__name__}\n", f"Exit code {kind.exit_code}. {_when(kind)}{above}\n"]
        mine = [site for site in found if site.kind == kind.__name__ and site.what != "{what}"]
        if mine:
            lines += ["| what is wrong | what to do next |", "|---|---|"]
            lines += dict.fromkeys(f"| {_cell(site.what)} | {_cell(site.remedy)} |" for site in mine)
    return "\n".join(lines) + "\n"


def _when(kind: type[KimistreamError]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
