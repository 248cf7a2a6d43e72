"""Values and operators that accuracy control took out of int8, and their cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantglow.report.display.tables import Table


@dataclass(frozen=True)
class PrecisionOverride:
    """A value that became int16, or an operator that became float.

    ``error`` is the noise over signal of the outputs caused by its rounding alone, as measured;
    ``seconds`` are its additional time, as estimated for one core (see ``quantization.costs``).
    """

    name: str
    precision: str
    error: float
    seconds: float

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PrecisionOverride:
        """The object from the result of ``asdict``."""
        name, precision = str(data["name"]), str(data["precision"])
        return PrecisionOverride(name, precision, float(data["error"]), float(data["seconds"]))


def overrides_table(layers: Sequence[PrecisionOverride]) -> Table:
    """A row for each override, in the order of their benefit for the cost."""
    rows = [(n.name, n.precision, f"{n.error:.2g}", f"{1e6 * n.seconds:.3g}") for n in layers]
    counts = Counter(n.precision for n in layers)
    kinds = ", ".join(f"{count} to {precision}" for precision, count in sorted(counts.items()))
    total = 1e6 * sum(n.seconds for n in layers)
    numbers = ("error taken away", "adds µs")
    title = f"Precision overrides by accuracy control: {kinds}; about {total:.3g} µs on one core"
    return Table(title, ("layer", "to", *numbers), rows, frozenset(numbers))
