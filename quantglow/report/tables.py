"""Tables and bars, declared as data, drawn as text in a terminal and as HTML in a notebook.

rich is imported when a table is drawn as text.
"""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import rich.table
    from rich.console import Console, ConsoleOptions, RenderResult


TERMINAL_WIDTH = 110
"""Columns in the text of a table."""

WIDTH = 30
"""Characters of the longest bar."""

OURS, OTHERS = "#2a7ae2", "#9aa5b1"
"""Colors of bars in HTML: blue, and grey; both are read on white and on black."""

MISSING = "–"
"""The text of a figure that there is not."""

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column: its title, and the value of a row in it.

    ``pattern`` formats numbers, ``missing`` stands for None; it is empty for a column of texts.
    ``text`` replaces the formatted value.  A page draws numbers with ``digits`` decimals and
    explains the column by ``help``.
    """

    title: str
    value: Callable[[Row], Any]
    pattern: str | Callable[[Any], str] = ""
    missing: str = MISSING
    text: Callable[[Row], str] | None = None
    digits: int = 1
    help: str = ""

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers, which are aligned to the right."""
        return bool(self.pattern)

    def cell(self, row: Row) -> str:
        """The text of a row in the column."""
        if self.text is not None:
            return self.text(row)
        value = self.value(row)
        if not self.pattern:
            return str(value)
        if value is None:
            return self.missing
        return self.pattern.format(value) if isinstance(self.pattern, str) else self.pattern(value)


@dataclass(frozen=True)
class ReportTable:
    """A table of texts; columns named in ``numbers`` are aligned to the right."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[str] = frozenset()

    @staticmethod
    def of(title: str, columns: Sequence[Column[Row]], rows: Iterable[Row]) -> ReportTable:
        """The table of some rows."""
        return ReportTable(
            title,
            tuple(column.title for column in columns),
            [[column.cell(row) for column in columns] for row in rows],
            frozenset(column.title for column in columns if column.is_number),
        )

    def cut(self, count: int) -> ReportTable:
        """The table with as many rows, and the number of those that are not shown."""
        if len(self.rows) <= count:
            return self
        last_row = (f"and {len(self.rows) - count} more", *[""] * (len(self.columns) - 1))
        return replace(self, rows=[*self.rows[:count], last_row])

    def rich(self) -> rich.table.Table:
        """The table for a rich console."""
        import rich.box
        import rich.table
        from rich.markup import escape

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

    def __str__(self) -> str:
        return _as_text(self.rich())

    def html(self) -> str:
        """A ``<table>``; every text is escaped."""
        head = "".join(
            f'<th style="text-align:{self._side(c)}">{html.escape(c)}</th>' for c in self.columns
        )
        body = "".join(f"<tr>{self._html_cells(row)}</tr>" for row in self.rows)
        caption = f"<caption>{html.escape(self.title)}</caption>"
        return f"<table>{caption}<tr>{head}</tr>{body}</table>"

    def folded(self) -> str:
        """The ``<table>`` behind its title, which unfolds it."""
        return f"<details><summary>{html.escape(self.title)}</summary>{self.html()}</details>"

    def _side(self, column: str) -> str:
        return "right" if column in self.numbers else "left"

    def _html_cells(self, row: Sequence[str]) -> str:
        cells = []
        for column, text in zip(self.columns, row, strict=True):
            # Spaces count, because histograms are drawn with them.
            style = f"text-align:{self._side(column)};white-space:pre-wrap"
            cells.append(f'<td style="{style}">{html.escape(text)}</td>')
        return "".join(cells)


class Tabular:
    """A verdict, tables and notes: text with ``str``, drawn by rich, HTML in a notebook."""

    notes: tuple[str, ...]

    def tables(self) -> Iterator[ReportTable]:
        """The figures as tables."""
        raise NotImplementedError

    def opening(self) -> Iterator[str]:
        """The verdict, which comes first."""
        return iter(())

    def heading(self) -> Iterator[str]:
        """Sentences between the verdict and the tables."""
        return iter(())

    def closing(self) -> Iterator[str]:
        """Sentences below the tables."""
        return iter(())

    def charts(self) -> Iterator[Sequence[Bar]]:
        """Groups of bars, which a notebook shows."""
        return iter(())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.markup import escape
        from rich.text import Text

        for line in self.opening():
            yield Text(line, no_wrap=True, overflow="ignore")  # figures stay in one piece
        for line in self.heading():
            yield escape(line)
        for table in self.tables():
            yield table.rich()
        for note in self.notes:
            yield f"Note: {escape(note)}"
        for line in self.closing():
            yield Text(line, no_wrap=True, overflow="ignore")  # commands stay in one piece

    def __str__(self) -> str:
        return _as_text(self)

    def _repr_html_(self) -> str:
        notes = ReportTable("Notes", ("note",), [(note,) for note in self.notes])
        tables = [*self.tables(), *([notes] if self.notes else [])]
        heading = map(paragraph, (*self.opening(), *self.heading()))
        parts = "\n".join([*heading, *(table.html() for table in tables)])
        return parts + "".join(map(html_bars, self.charts()))


def paragraph(line: str, style: str = "") -> str:
    """A line of text as HTML."""
    attribute = f" style='{style}'" if style else ""
    return f"<p{attribute}>{html.escape(line)}</p>"


def _as_text(shown: Any) -> str:
    """The text of an object that rich draws."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=TERMINAL_WIDTH, color_system=None)
    console.print(shown, highlight=False, crop=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def number(value: float | None, pattern: str = "{:.1f}") -> str:
    """A figure, or a dash where there is none."""
    return MISSING if value is None else pattern.format(value)


def nbytes_text(nbytes: int) -> str:
    """A size in bytes, kB or MB (powers of 1000)."""
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"


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
    color = OURS if bar.is_ours else OTHERS
    name, figure = html.escape(bar.name), html.escape(bar.figure)
    filled = f"width:{100 * bar.share:.1f}%;min-width:2px;height:14px;background:{color}"
    return (
        "<div style='display:flex;align-items:center;gap:8px'>"
        f"<span style='width:150px;text-align:right'>{name}</span>"
        f"<span style='flex:1'><span style='display:block;{filled}'></span></span>"
        f"<span style='width:120px'>{figure}</span></div>"
    )
