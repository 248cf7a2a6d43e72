"""Tables as plain data, drawn by rich in a terminal and as HTML in a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import rich.box
import rich.table
from rich.markup import escape


@dataclass(frozen=True)
class Table:
    """Cells are texts; columns named in ``numbers`` are aligned to the right."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[str] = frozenset()

    def rich(self) -> rich.table.Table:
        """For a rich console."""
        drawn = rich.table.Table(
            title=escape(self.title), title_justify="left", box=rich.box.SIMPLE
        )
        for column in self.columns:
            right = column in self.numbers
            drawn.add_column(
                escape(column), justify="right" if right else "left", overflow="fold", no_wrap=right
            )
        for row in self.rows:
            drawn.add_row(*map(escape, row))
        return drawn

    def html(self) -> str:
        """A ``<table>``; every text is escaped."""
        head = "".join(f"<th>{html.escape(c)}</th>" for c in self.columns)
        body = "".join(f"<tr>{self._html_cells(row)}</tr>" for row in self.rows)
        caption = f"<caption>{html.escape(self.title)}</caption>"
        return f"<table>{caption}<tr>{head}</tr>{body}</table>"

    def _html_cells(self, row: Sequence[str]) -> str:
        cells = []
        for column, text in zip(self.columns, row, strict=True):
            side = "right" if column in self.numbers else "left"
            cells.append(f'<td style="text-align:{side}">{html.escape(text)}</td>')
        return "".join(cells)


def number(value: float | None, pattern: str = "{:.1f}") -> str:
    """A figure, or a dash where there is none."""
    return "–" if value is None else pattern.format(value)


def nbytes_text(nbytes: int) -> str:
    """A size in bytes, kB or MB (powers of 1000)."""
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"
