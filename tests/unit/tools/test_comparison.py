"""Records compared: what differs fails, what is new is named, nothing in common fails."""

from __future__ import annotations

import pytest

from tools.comparison import Record, compared


@pytest.mark.parametrize(
    ("before", "after", "fails", "said"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, False, "1 of 1 entries are equal"),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, True, "b: 2 3\n1 of 2 entries are equal"),
        ({"a": 1}, {"a": 1, "c": 3}, False, "not in the file: c\n1 of 1 entries are equal"),
        ({"a": 1}, {"c": 3}, True, "not in the file: c\n0 of 0 entries are equal"),
        ({"a": 1}, {}, True, "0 of 0 entries are equal"),
    ],
)
def test_a_comparison_fails_where_common_entries_differ(
    before: Record, after: Record, fails: bool, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = compared(before, after, lambda name, old, new: f"{name}: {old} {new}")
    assert (result, capsys.readouterr().out) == (fails, f"{said}\n")
