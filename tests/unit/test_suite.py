"""Rules that the tests themselves keep."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
FILES = [path for path in TESTS.rglob("*.py") if path != Path(__file__)]


def test_the_number_of_examples_is_a_class_of_effort() -> None:
    users = {path.name for path in FILES if "max_examples" in path.read_text()}
    assert users == {"effort.py"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def names_of_others(tree: ast.AST) -> Iterator[str]:
    """Names that a test imports from quantglow, reads from its objects, or replaces in them."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str() as module) if module.startswith("quantglow"):
                yield from (alias.name for alias in node.names)
            case ast.Attribute(value=owner, attr=name) if ast.unparse(owner) not in ("self", "os"):
                yield name
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[_, ast.Constant(name), _]):
                yield str(name)
            case ast.Constant(value=str() as text) if text.startswith("quantglow.") and ":" in text:
                yield from text.partition(":")[2].split(".")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_")


def test_private_names_are_not_tested() -> None:
    assert [
        (path.name, name)
        for path in FILES
        for name in names_of_others(tree_of(path))
        if is_private(name)
    ] == []


def modules_of(tree: ast.AST) -> Iterator[str]:
    """Modules that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_benchmarks_are_not_imported() -> None:
    assert [
        (path.name, module)
        for path in FILES
        for module in modules_of(tree_of(path))
        if module.startswith("benchmarks")
    ] == []
