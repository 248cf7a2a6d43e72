"""Imports go one way: downloads, networks, support, then accuracy and the tools, then latency."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MAY_IMPORT = {
    "tools/downloads": set(),
    "benchmarks/networks": {"tools/downloads"},
    "benchmarks/support": {"tools/downloads", "benchmarks/networks"},
    "benchmarks/accuracy": {"tools/downloads", "benchmarks/networks", "benchmarks/support"},
    "tools": {"tools/downloads", "benchmarks/networks", "benchmarks/support"},
    "benchmarks/latency": {"tools/downloads", "benchmarks/networks", "benchmarks/support", "tools"},
}
FOLDERS = sorted(MAY_IMPORT, key=len, reverse=True)
"""The deepest first: ``tools/downloads`` is not ``tools``."""

FILES = [path for folder in MAY_IMPORT for path in sorted((ROOT / folder).glob("*.py"))]


def imported_folders(path: Path) -> Iterator[str]:
    """Folders of ``tools`` and ``benchmarks`` that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            for folder in FOLDERS:
                if any(f"{name}.".startswith(folder.replace("/", ".") + ".") for name in names):
                    yield folder
                    break


def imported_above(path: Path) -> set[str]:
    """Folders that a file imports from and may not."""
    ours = path.parent.relative_to(ROOT).as_posix()
    return set(imported_folders(path)) - {ours} - set(MAY_IMPORT[ours])


def test_imports_go_one_way() -> None:
    assert {path: above for path in FILES if (above := imported_above(path))} == {}
