"""Sections of a report: the summary, and tables of fallbacks, programs and precision overrides.

The summary has the result in three lines, accuracy, size and speed, and the next step.  Fallbacks
are operators that other backends compiled, with the reasons; programs serve the shapes of a model
with free dimensions; overrides are what accuracy control took out of int8, with their cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantglow.evaluation.baselines.latency import MeasuredLatency
from quantglow.evaluation.report import PrecisionOverride
from quantglow.evaluation.weight_sizes import WeightSizes
from quantglow.report.memory import weights_bars
from quantglow.report.speed import latency_bars
from quantglow.report.tables import Bar, Column, ReportTable, html_bars, paragraph

if TYPE_CHECKING:
    from quantglow.ort.fallback import FallbackNode
    from quantglow.runtime.shapes.specializations import ServedShapes

NOT_CHECKED = "Accuracy: not checked."
NOT_MEASURED = "Speed: not measured."
FULL_DB = 60.0
"""SQNR in dB at which the bar of accuracy is full."""


@dataclass(frozen=True)
class Summary:
    """The lines that a report begins with, and the next step, with which it ends.

    ``accuracy`` is a sentence, ``verdict`` its words and ``sqnr_db`` its figure; ``look_at`` are
    layers to look at, worst first; ``operators`` counts operators by precision.
    """

    accuracy: str
    verdict: str
    sqnr_db: float | None
    look_at: Sequence[str]
    operators: dict[str, int]
    sizes: WeightSizes | None
    latency: MeasuredLatency | None
    next_step: str

    def lines(self) -> Iterator[str]:
        """Accuracy, size, speed, the next step."""
        yield from self.figures()
        yield self.step

    @property
    def step(self) -> str:
        """The next step as a sentence."""
        return f"Next: {self.next_step}"

    def figures(self) -> Iterator[str]:
        """Accuracy, layers to look at, size, speed."""
        yield self.accuracy or NOT_CHECKED
        if self.look_at:
            yield f"Look at these layers: {', '.join(self.look_at)}."
        yield f"Size: {self.size}."
        yield f"Speed: {self.latency}." if self.latency else NOT_MEASURED

    @property
    def size(self) -> str:
        """Weights before and after, and the number of operators of each precision."""
        counts = ", ".join(f"{count} {kind}" for kind, count in self.operators.items())
        operators = f"operators: {counts}"
        return f"{self.sizes}; {operators}" if self.sizes else operators

    def to_json(self) -> dict[str, Any]:
        """The figures in types that ``json`` writes."""
        return {
            "verdict": self.verdict,
            "accuracy": self.accuracy,
            "look_at": [*self.look_at],
            "operators": self.operators,
            "weights": self.sizes.to_json() if self.sizes else None,
            "latency": self.latency.to_json() if self.latency else None,
            "next_step": self.next_step,
        }

    def html(self) -> str:
        """The lines, with bars beside the figures."""
        lines = "".join(paragraph(line, "margin:2px 0") for line in self.lines())
        return f"<div>{lines}{''.join(map(html_bars, self.charts()))}</div>"

    def charts(self) -> Iterator[Sequence[Bar]]:
        """Bars of accuracy, size and speed, as far as they are known."""
        if self.sqnr_db is not None:
            share = min(1.0, max(0.0, self.sqnr_db / FULL_DB))
            yield (Bar("accuracy", share, f"{self.sqnr_db:.1f} dB", is_ours=True),)
        if self.sizes:
            yield weights_bars(self.sizes)
        if self.latency:
            yield latency_bars(self.latency)


FALLBACK: tuple[Column[FallbackNode], ...] = (
    Column("layer", lambda node: node.name),
    Column("op", lambda node: node.op),
    Column("runs in", lambda node: node.backend),
    Column("why", lambda node: node.reason),
)

PROGRAMS: tuple[Column[ServedShapes], ...] = (
    Column("shapes", lambda program: program.shapes),
    Column("made", lambda program: program.program),
    Column("where", lambda program: "; ".join(program.conditions)),
    Column("elsewhere", lambda program: program.elsewhere),
)

OVERRIDES: tuple[Column[PrecisionOverride], ...] = (
    Column("layer", lambda override: override.name),
    Column("to", lambda override: override.precision),
    Column("error taken away", lambda override: override.error, "{:.2g}"),
    Column("adds µs", lambda override: 1e6 * override.seconds, "{:.3g}"),
)


def fallback_table(nodes: Sequence[FallbackNode]) -> ReportTable:
    """A row for each operator that quantglow's own code generators do not run."""
    counts = Counter(node.backend for node in nodes)
    title = "Fallback: " + ", ".join(f"{count} to {name}" for name, count in counts.items())
    return ReportTable.of(title, FALLBACK, nodes)


def programs_table(programs: Sequence[ServedShapes]) -> ReportTable:
    """A row for each program."""
    return ReportTable.of(f"Programs: {len(programs)} for the shapes so far", PROGRAMS, programs)


def overrides_table(overrides: Sequence[PrecisionOverride]) -> ReportTable:
    """A row for each override, in the order of their benefit for the cost."""
    counts = Counter(override.precision for override in overrides)
    kinds = ", ".join(f"{count} to {precision}" for precision, count in sorted(counts.items()))
    total = 1e6 * sum(override.seconds for override in overrides)
    title = f"Precision overrides by accuracy control: {kinds}; about {total:.3g} µs on one core"
    return ReportTable.of(title, OVERRIDES, overrides)
