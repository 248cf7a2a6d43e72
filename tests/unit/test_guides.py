"""Every folder says what each of its files does.

A folder with more than five files has a README.md; a smaller one of the package names its modules
in the docstring of ``__init__.py``.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tools.prose import ROOT, is_generated

PACKAGE = ROOT / "quantglow"
MAX_FILES_WITHOUT_README = 5
MAX_WORDS = 10
"""Maximum number of words about a file."""

EXPLAIN_FOLDERS_BELOW = {
    "tests/unit": "they mirror the folders of the package",
    "tests/e2e": "saved graphs of one kind",
}
"""Folders whose README explains all folders below it, and why one is enough."""


def is_explained_above(folder: Path) -> bool:
    above = {path.as_posix() for path in folder.relative_to(ROOT).parents}
    return bool(above & EXPLAIN_FOLDERS_BELOW.keys())


def files_of(folder: Path) -> set[str]:
    """Names of the files that a guide names: not the README itself, nor hidden or compiled ones."""
    actual = {path.name for path in folder.iterdir() if path.is_file()}
    return {f for f in actual if f[0] != "." and not f.endswith(".pyc")} - {"README.md"}


def rooms_of(folder: Path) -> set[str]:
    """Names of the packages in a folder."""
    return {path.parent.name for path in folder.glob("*/__init__.py")}


FOLDERS = [
    path
    for path in sorted(ROOT.rglob("*"))
    if path.is_dir() and not is_generated(path) and path.name != "__pycache__"
]
WITH_README = [
    folder
    for folder in FOLDERS
    if not is_explained_above(folder)
    if len(files_of(folder)) > MAX_FILES_WITHOUT_README
    or (PACKAGE in folder.parents and (folder / "README.md").exists())
]
SMALL_PACKAGES = [
    folder
    for folder in FOLDERS
    if PACKAGE in folder.parents and (folder / "__init__.py").exists()
    if folder not in WITH_README
]


def name_of(folder: Path) -> str:
    return folder.relative_to(ROOT).as_posix()


def readme_of(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def rows_of(text: str) -> list[tuple[str, str]]:
    """First and second cell of each row of the tables whose first column is ``file``."""
    tables = re.findall(r"^\| file \|.*\n\| ?---.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    lines = [line for table in tables for line in table.splitlines()]
    return [(cells[1], cells[2]) for line in lines if (cells := line.split("|"))]


@pytest.mark.parametrize("folder", WITH_README, ids=name_of)
def test_a_readme_names_every_file(folder: Path) -> None:
    named = set(re.findall(r"`([^`\n]+)`", readme_of(folder)))
    rooms = {f"{room}/" for room in rooms_of(folder)}
    assert sorted((files_of(folder) | rooms) - {"__init__.py"} - named) == []


@pytest.mark.parametrize("folder", WITH_README, ids=name_of)
def test_a_readme_names_no_file_that_is_gone(folder: Path) -> None:
    named = [name for cell, _ in rows_of(readme_of(folder)) for name in re.findall("`(.+?)`", cell)]
    assert [name for name in named if not (folder / name).exists()] == []


@pytest.mark.parametrize("folder", WITH_README, ids=name_of)
def test_a_table_is_short(folder: Path) -> None:
    text = readme_of(folder)
    rows = rows_of(text) if "| file | does |" in text else []
    assert [does for _, does in rows if len(does.split()) > MAX_WORDS] == []


@pytest.mark.parametrize("folder", SMALL_PACKAGES, ids=name_of)
def test_the_docstring_of_a_small_package_names_its_modules(folder: Path) -> None:
    guide = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    modules = {Path(file).stem for file in files_of(folder) if file.endswith(".py")} - {"__init__"}
    assert [name for name in sorted(modules | rooms_of(folder)) if f"``{name}``" not in guide] == []


@pytest.mark.parametrize("folder", EXPLAIN_FOLDERS_BELOW)
def test_a_readme_that_explains_folders_below_it_names_them(folder: str) -> None:
    below = {path.name for path in (ROOT / folder).iterdir() if path in FOLDERS}
    mirrored = rooms_of(PACKAGE) | {"tools", "examples"} if folder == "tests/unit" else set()
    assert [name for name in below - mirrored if f"`{name}/" not in readme_of(ROOT / folder)] == []
