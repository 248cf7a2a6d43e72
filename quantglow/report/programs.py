"""The programs of a model with free dimensions, and the shapes that each serves."""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.report.display.tables import Table
from quantglow.runtime.shapes.served_shapes import ServedShapes


def programs_table(programs: Sequence[ServedShapes]) -> Table:
    """A row for each program."""
    rows = [(p.shapes, p.program, "; ".join(p.conditions), p.elsewhere) for p in programs]
    title = f"Programs: {len(programs)} for the shapes so far"
    return Table(title, ("shapes", "made", "where", "elsewhere"), rows)
