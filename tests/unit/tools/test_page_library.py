"""The vendored layout library names no other file, and has its licence beside it."""

from __future__ import annotations

from quantglow.report.webpage import VENDOR
from tools.page_library import FILES, MAP, without_map


def test_the_vendored_files_are_those_that_are_fetched() -> None:
    assert {path.name for path in VENDOR.iterdir()} == set(FILES.values())


def test_scripts_lose_the_name_of_their_map() -> None:
    assert without_map(b"code();\n" + MAP + b"code.js.map\n") == b"code();\n"
    assert MAP not in (VENDOR / "dagre.min.js").read_bytes()
