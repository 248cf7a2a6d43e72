"""Every function and class of the package is used somewhere."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "quantglow").rglob("*.py"))
OUTSIDE = ("benchmarks", "examples", "tools")
USERS = [*FILES, *(path for folder in OUTSIDE for path in (ROOT / folder).rglob("*.py"))]


def definitions(path: Path) -> set[str]:
    """Names that a file defines, but those that a decorator registers."""
    actual = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            registered = any(
                isinstance(d, ast.Call) or ast.unparse(d) == "op" for d in node.decorator_list
            )
            actual |= set() if registered or node.name.startswith("__") else {node.name}
    return actual


def test_every_function_and_class_is_used_somewhere() -> None:
    words = Counter(word for path in USERS for word in re.findall(r"\w+", path.read_text()))
    unused = {name for path in FILES for name in definitions(path) if words[name] == 1}
    assert unused == set()
