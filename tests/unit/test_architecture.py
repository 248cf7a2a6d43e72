"""docs/architecture.md names files that exist, in the order of the layers."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MAX_STOPS = 15


def stops() -> list[list[str]]:
    """The files of each stop on the way of a model."""
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", PAGE, re.MULTILINE)
    return [re.findall(r"`([\w/]+\.py)`", cell) for _, cell in rows]


def test_every_stop_is_a_file() -> None:
    files = [file for stop in stops() for file in stop]
    assert [file for file in files if not (ROOT / "quantglow" / file).is_file()] == []


def test_the_way_of_a_model_has_few_stops() -> None:
    assert 10 <= len(stops()) <= MAX_STOPS


def test_every_folder_of_the_package_is_on_the_page() -> None:
    folders = {path.parent.name for path in (ROOT / "quantglow").glob("*/__init__.py")}
    assert {name for name in folders if f"`{name}/`" not in PAGE} == set()
