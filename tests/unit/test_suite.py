"""Rules that the tests themselves keep."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
FILES = [path for path in TESTS.rglob("*.py") if path != Path(__file__)]


def test_the_number_of_examples_is_a_class_of_effort() -> None:
    users = {path.name for path in FILES if "max_examples" in path.read_text()}
    assert users == {"effort.py"}
