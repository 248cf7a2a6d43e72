"""Hypothesis: altered texts."""

from __future__ import annotations

from hypothesis import strategies as st

edits = st.lists(
    st.tuples(
        st.integers(0, 10**4), st.integers(0, 9), st.text("0123456789()[]{}<>,.:=%@'\"\\ -naixw")
    ),
    min_size=1,
    max_size=3,
)


def edited(text: str, changes: list[tuple[int, int, str]]) -> str:
    for start, length, new in changes:
        at = start % len(text)
        text = text[:at] + new + text[at + length :]
    return text
