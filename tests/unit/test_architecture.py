"""docs/architecture.md names the folders, and the stops of a model in the order it passes them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import quantglow as qg
from tests.support.small_network import small_model, small_samples

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "quantglow"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
STOPS = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \| `(\w+)` \|", PAGE, re.MULTILINE)
"""File and function of each stop."""

MAX_STOPS = 15


def passed(call: Callable[[], object]) -> list[tuple[str, str]]:
    """The stops whose functions run in this thread during a call, in the order of their first."""
    actual: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        if event == "call" and path.is_relative_to(PACKAGE):
            actual.setdefault((path.relative_to(PACKAGE).as_posix(), name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return [stop for stop in actual if stop in STOPS]


def test_a_model_passes_the_stops_in_their_order() -> None:
    assert (
        passed(lambda: qg.quantize_and_compile(small_model(), small_samples(), progress=False))
        == STOPS
    )


def test_the_way_of_a_model_has_few_stops() -> None:
    assert 10 <= len(STOPS) <= MAX_STOPS


def test_every_folder_of_the_package_is_on_the_page() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {name for name in folders if f"`{name}/`" not in PAGE} == set()
