"""Rules that the tests themselves keep."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.support.combinations import covering, pairs_of

TESTS = Path(__file__).parents[1]
FILES = [path for path in TESTS.rglob("*.py") if path != Path(__file__)]


def test_the_number_of_examples_is_a_class_of_effort() -> None:
    users = {path.name for path in FILES if "max_examples" in path.read_text()}
    assert users == {"effort.py"}


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


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


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_each_two_values_meet_in_a_combination_that_is_not_exhaustive(sizes: list[int]) -> None:
    params = covering(*map(range, sizes))
    run = [p.values for p in params if not any(mark.name == "exhaustive" for mark in p.marks)]
    assert [p.values for p in params] == [*product(*map(range, sizes))]
    pairs = set(chain.from_iterable(map(pairs_of, product(*map(range, sizes)))))
    assert set(chain.from_iterable(map(pairs_of, run))) == pairs
