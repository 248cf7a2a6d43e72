"""Horizontal bars: text in a terminal, HTML in a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 30
"""Characters of the longest bar."""

OURS, OTHERS = "#2a7ae2", "#9aa5b1"
"""Colours of bars in HTML: blue, and grey; both are read on white and on black."""


@dataclass(frozen=True)
class Bar:
    """A bar of length ``share``, from 0 to 1, between a name and a figure."""

    name: str
    share: float
    figure: str
    is_ours: bool = False


def text_bar(share: float) -> str:
    """A bar of at least one character."""
    return "█" * max(1, round(WIDTH * share))


def html_bars(bars: Sequence[Bar]) -> str:
    """A row for each bar."""
    return f"<div style='margin:6px 0;max-width:640px'>{''.join(map(_html_row, bars))}</div>"


def _html_row(bar: Bar) -> str:
    colour = OURS if bar.is_ours else OTHERS
    name, figure = html.escape(bar.name), html.escape(bar.figure)
    filled = f"width:{100 * bar.share:.1f}%;min-width:2px;height:14px;background:{colour}"
    return (
        "<div style='display:flex;align-items:center;gap:8px'>"
        f"<span style='width:150px;text-align:right'>{name}</span>"
        f"<span style='flex:1'><span style='display:block;{filled}'></span></span>"
        f"<span style='width:120px'>{figure}</span></div>"
    )
