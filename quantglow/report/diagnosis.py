"""The tables of a diagnosis, and its page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quantglow.evaluation.accuracy import SUSPECTS
from quantglow.evaluation.diagnosis import Diagnosis
from quantglow.report.accuracy import (
    ALL_FLOAT_WARNING,
    headline,
    layers_table,
    outputs_table,
    with_figure,
    worst_tables,
)
from quantglow.report.page import Figures, graph_page
from quantglow.report.speed import speed_table
from quantglow.report.tables import ReportTable, Tabular
from quantglow.report.webpage import Page


@dataclass(frozen=True)
class DiagnosisView(Tabular):
    """A diagnosis: the verdict, the worst layers, tables."""

    diagnosis: Diagnosis

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The notes of the diagnosis."""
        return self.diagnosis.notes

    @property
    def verdict(self) -> str:
        """The accuracy of int8 in words."""
        if all(layer.precision == "float" for layer in self.diagnosis.layers):
            return ALL_FLOAT_WARNING
        return headline(self.diagnosis.outputs, self.diagnosis.samples, "", None, False)

    def opening(self) -> Iterator[str]:
        """The accuracy of int8, and the worst layers."""
        yield self.verdict
        if suspects := self.diagnosis.worst(SUSPECTS):
            yield f"Look at these layers: {', '.join(map(with_figure, suspects))}."

    def tables(self) -> Iterator[ReportTable]:
        """Tables: outputs, the worst layers in detail, all layers, the codes of each, a
        glossary.
        """
        figures = self.diagnosis
        title = f"Outputs of the int8 graph against the float graph, {figures.samples} sample(s)"
        yield outputs_table(title, figures.outputs)
        if layers := figures.worst(figures.shown):
            yield from worst_tables(layers)
        yield layers_table(figures.layers)
        if figures.speeds:
            yield speed_table(figures.speeds)
        yield ReportTable("What the figures mean", ("figure", "meaning"), _MEANINGS)

    def page(self) -> Page:
        """The page that explains the model."""
        figures = self.diagnosis
        measured = (("samples", str(figures.samples)),)
        shown = Figures(
            figures.layers, figures.outputs, figures.speeds, self.verdict, figures.notes, measured
        )
        return graph_page(figures.graph, figures.source, shown)


_MEANINGS = (
    ("alone dB", "SQNR of the worst output (before Softmax) by this layer's error alone; low: bad"),
    ("local dB", "SQNR of the layer's integer form on exact operands"),
    ("accumulated dB", "SQNR of the layer's value with the errors of all layers before it"),
    ("limits", "share of the values on the lowest or highest code (0 does not count)"),
    ("codes", "codes that occurred, of those there are"),
    ("range seen", "share of the range between the smallest and the largest profiled value"),
    ("99.9 %", "share of the range that 99.9 % of the profiled values need; small: outliers"),
    ("codes taken", "histogram over the codes, lowest on the left"),
)
