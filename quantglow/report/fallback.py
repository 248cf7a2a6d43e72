"""Operators that other backends than quantglow's own compiled, and the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from quantglow.report.display.tables import Table
from quantglow.runtime.fallback import FallbackNode


def fallback_table(nodes: Sequence[FallbackNode]) -> Table:
    """A row for each operator that quantglow's own code generators do not run."""
    rows = [(n.name, n.op, n.backend, n.reason) for n in nodes]
    counts = Counter(n.backend for n in nodes)
    title = "Fallback: " + ", ".join(f"{count} to {name}" for name, count in counts.items())
    return Table(title, ("layer", "op", "runs in", "why"), rows)
