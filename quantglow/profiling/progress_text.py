"""How far an iteration is, in words."""

from __future__ import annotations


def line(label: str, count: int, total: float | None, spent: float) -> str:
    """The state before item ``count``; the time left, once one is done."""
    of_all = "" if total is None else f" of {total:.0f}"
    if total is None or count == 1:
        return f"{label}: {count}{of_all}"
    left = spent / (count - 1) * max(total - count + 1, 0)
    return f"{label}: {count}{of_all}, about {left:.0f} s left"
