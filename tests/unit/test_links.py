"""Links and paths of Markdown pages lead to files that exist.

A path in backticks may leave out the folders that its page is about: it has to be the end of the
path of a file or folder.  Blocks of code and words in capitals, as FOLDER, are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.prose import ROOT, files, is_generated

PAGES = [path for path in files([ROOT]) if path.suffix == ".md"]
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)*(?:/|/[\w-]+\.[a-z]+))`")
"""A path of a folder that ends in a slash, or of a file in a folder."""
PLACEHOLDER = re.compile(r"FOLDER|MODULE|NAME|YYYY")

ELSEWHERE = {"calibration/models/": "large models, which users copy there and git ignores"}
"""Paths of no file of the repository -> why a page names them."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(path: Path) -> str:
    return BLOCK.sub("", path.read_text(encoding="utf-8"))


@cache
def ends_of_paths() -> frozenset[str]:
    """Each file and folder of the repository, with any number of the folders that it lies in."""
    actual = (path for path in ROOT.rglob("*") if not is_generated(path))
    return frozenset(end for path in actual for end in ends_of(path.relative_to(ROOT).parts))


def ends_of(parts: tuple[str, ...]) -> Iterator[str]:
    return ("/".join(parts[first:]) for first in range(len(parts)))


def broken_links(page: Path) -> list[str]:
    targets = (t for t in LINK.findall(text_of(page)) if not re.match(r"\w+:", t))
    return [target for target in targets if not (page.parent / target).exists()]


def unknown_paths(page: Path) -> list[str]:
    named = set(PATH.findall(text_of(page))) - ELSEWHERE.keys()
    paths = (path for path in named if not PLACEHOLDER.search(path))
    return [path for path in paths if path.rstrip("/") not in ends_of_paths()]


def test_links_lead_to_files() -> None:
    assert {name_of(page): broken for page in PAGES if (broken := broken_links(page))} == {}


def test_paths_in_backticks_exist() -> None:
    assert {name_of(page): unknown for page in PAGES if (unknown := unknown_paths(page))} == {}
