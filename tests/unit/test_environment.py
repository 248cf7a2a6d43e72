"""Environment variables: one page has all that the code reads, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields

from quantglow.importer.onnx.budget import ImportBudget, variable
from tools.prose import ROOT, is_generated

PAGE = ROOT / "docs/reference/environment.md"
NAME = re.compile(r"QUANTGLOW(_[A-Z]+)+")
FOLDERS = ("quantglow", "tools", "benchmarks", "tests")
OF_TESTS = {"QUANTGLOW_TEST_FOLDER"}
"""Variables that tests set for functions of their own."""


def documented() -> list[str]:
    """The variables in the tables of the page."""
    return re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def names_in(text: str) -> Iterator[str]:
    """The strings of a Python file that are names of variables."""
    for node in ast.walk(ast.parse(text)):
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and NAME.fullmatch(value):
            yield value


def read_by_the_code() -> set[str]:
    """The variables that Python files name; those of import budgets are made of their fields."""
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    texts = (path.read_text(encoding="utf-8") for path in paths if not is_generated(path))
    named = {name for text in texts if "QUANTGLOW_" in text for name in names_in(text)}
    return named | {variable(field.name) for field in fields(ImportBudget)}


def test_the_page_has_every_variable_once() -> None:
    assert sorted(documented()) == sorted(read_by_the_code() - OF_TESTS)
