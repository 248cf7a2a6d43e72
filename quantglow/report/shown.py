"""A report as it is shown: with the tables that matter, or with all of them."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantglow.report.display.tables import Table, Tabular
from quantglow.report.summary import Summary

if TYPE_CHECKING:
    from quantglow.report.report import Report


@dataclass(frozen=True)
class ShownReport(Tabular):
    """``print`` it, or show it in a notebook; ``next_step`` replaces the report's own."""

    report: Report
    all_layers: bool = True
    next_step: str = ""

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The report's notes."""
        return self.report.notes

    @property
    def summary(self) -> Summary | None:
        """The lines at the end; None for a model that was not quantized."""
        return self.report.summary(self.next_step)

    def tables(self) -> Iterator[Table]:
        """All tables, or those that matter."""
        return self.report.tables(self.all_layers)

    def opening(self) -> Iterator[str]:
        """The summary."""
        if self.summary is not None:
            yield from self.summary.figures()

    def heading(self) -> Iterator[str]:
        """The warnings."""
        yield from (f"Warning: {warning}" for warning in self.report.warnings)

    def closing(self) -> Iterator[str]:
        """The next step."""
        if self.summary is not None:
            yield self.summary.step

    def _repr_html_(self) -> str:
        """The summary with bars, warnings and notes; tables that unfold."""
        own = [self.summary.html()] if self.summary is not None else []
        lines = [*self.heading(), *(f"Note: {note}" for note in self.notes)]
        texts = [f"<p>{html.escape(line)}</p>" for line in lines]
        return "\n".join([*own, *texts, *map(folded, self.report.tables(True))])


def folded(table: Table) -> str:
    """A table behind its title."""
    return f"<details><summary>{html.escape(table.title)}</summary>{table.html()}</details>"
