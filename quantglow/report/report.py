"""Reports and diagnoses in words and tables, in short or in full, and their pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quantglow.evaluation.accuracy import SUSPECTS, worst, worst_sqnr_db
from quantglow.evaluation.diagnosis import Diagnosis
from quantglow.evaluation.report import MemoryFigures, Report, TraceLike
from quantglow.report.accuracy import (
    ALL_FLOAT,
    ALL_FLOAT_WARNING,
    float_table,
    headline,
    is_close,
    layers_table,
    outputs_table,
    verdict,
    with_figure,
    worst_tables,
)
from quantglow.report.page import Figures, graph_page
from quantglow.report.sections import Summary, fallback_table, overrides_table, programs_table
from quantglow.report.speed import speed_table
from quantglow.report.tables import ReportTable, Tabular, nbytes_text, paragraph
from quantglow.report.webpage import Page

SHOWN = 5
"""Number of rows of tables that are cut."""

SAVE = 'compiled.save("model.qgm")'
DIAGNOSE = "qg.diagnose(model, samples), or a limit: quantize_and_compile(…, max_drop=0.1)"
"""The next step in Python, after a close result and after one that is not."""


@dataclass(frozen=True)
class ReportView(Tabular):
    """``print`` it, or show it in a notebook; ``next_step`` replaces the report's own.

    It has the tables that matter, or all of them with ``all_layers``.
    """

    report: Report
    all_layers: bool = False
    next_step: str = ""

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The report's notes."""
        return self.report.notes

    @property
    def full(self) -> ReportView:
        """The view with all tables: every layer, codes, times of stages."""
        return ReportView(self.report, all_layers=True)

    @property
    def headline(self) -> str:
        """The accuracy of int8 in words, or that nothing is; empty if no outputs were compared."""
        report = self.report
        if report.is_all_float:
            return ALL_FLOAT_WARNING
        facts = (report.samples, report.origin, report.right, bool(report.warnings), report.subject)
        return headline(report.outputs, *facts) if report.layers else ""

    @property
    def verdict(self) -> str:
        """The headline in a few words; empty if no outputs were compared."""
        return ALL_FLOAT if self.report.is_all_float else verdict(self.report.outputs)

    def summary(self, next_step: str = "") -> Summary | None:
        """Accuracy, size, speed and the next step; None for a model that was not quantized."""
        report, words = self.report, self.verdict
        if not report.layers:
            return None
        good = is_close(words) or not words
        suspects = () if good else worst(report.layers, SUSPECTS)
        return Summary(
            self.headline,
            words,
            worst_sqnr_db(report.outputs),
            tuple(map(with_figure, suspects)),
            report.operators,
            report.weights,
            report.latency,
            report.int8_share,
            next_step or self.next_step or (SAVE if good else DIAGNOSE),
        )

    def opening(self) -> Iterator[str]:
        """The summary."""
        if (summary := self.summary()) is not None:
            yield from summary.figures()

    def heading(self) -> Iterator[str]:
        """The warnings."""
        yield from (f"Warning: {warning}" for warning in self.report.warnings)

    def closing(self) -> Iterator[str]:
        """The next step."""
        if (summary := self.summary()) is not None:
            yield summary.step

    def tables(self) -> Iterator[ReportTable]:
        """All tables, or those that matter."""
        is_short = self.report.layers and not self.all_layers
        return self._short_tables() if is_short else self._all_tables()

    def _short_tables(self) -> Iterator[ReportTable]:
        report = self.report
        if report.outputs:
            yield self._outputs_table()
        if layers := worst(report.layers, SHOWN):
            yield worst_tables(layers)[0]
        if floats := [layer for layer in report.layers if layer.precision == "float"]:
            yield float_table(floats).cut(SHOWN)
        if report.precision_overrides:
            yield overrides_table(report.precision_overrides).cut(SHOWN)
        if slower := [speed for speed in report.speeds if speed.precision == "float"]:
            yield speed_table(slower).cut(SHOWN)
        if report.fallback:
            yield fallback_table(report.fallback).cut(SHOWN)

    def _outputs_table(self) -> ReportTable:
        report = self.report
        title = f"Outputs against {report.compared_with}, {report.samples} sample(s)"
        return outputs_table(f"{title} {report.origin}".rstrip(), report.outputs)

    def _all_tables(self) -> Iterator[ReportTable]:
        report = self.report
        if report.outputs:
            yield self._outputs_table()
        if layers := worst(report.layers):
            yield from worst_tables(layers)
        if report.layers:
            yield layers_table(report.layers)
        if report.precision_overrides:
            yield overrides_table(report.precision_overrides)
        if report.speeds:
            yield speed_table(report.speeds)
        if report.fallback:
            yield fallback_table(report.fallback)
        if report.programs:
            yield programs_table(report.programs)
        yield ReportTable("Compilation", ("what", "figure"), list(_compilation_rows(report)))

    def _repr_html_(self) -> str:
        """The summary with bars, warnings and notes; tables that unfold."""
        summary = self.summary()
        parts = [summary.html()] if summary is not None else []
        lines = [*self.heading(), *(f"Note: {note}" for note in self.notes)]
        tables = self.full.tables()
        return "\n".join([*parts, *map(paragraph, lines), *(table.folded() for table in tables)])

    def page(self, trace: TraceLike = None) -> Page:
        """The page that explains the model; ``trace`` replaces the timeline of its source."""
        report, summary = self.report, self.summary()
        words = "" if summary is None else "\n".join(summary.lines())
        notes, rows = (*report.warnings, *report.notes), [*_compilation_rows(report)]
        figures = Figures(report.layers, report.outputs, report.speeds, words, notes, rows)
        return graph_page(report.graph, report.source, figures, trace)


def _compilation_rows(report: Report) -> Iterator[tuple[str, str]]:
    """Target, memory, profile, and the time of each stage."""
    memory = report.memory
    yield "target", f"{report.target}, {report.num_threads} thread(s)"
    if memory == MemoryFigures() and (report.fallback or not report.seconds):
        yield "memory", "onnxruntime's" if report.fallback else "planned at first calls of shapes"
    else:
        yield "activations", f"{nbytes_text(memory.peak_nbytes)} in one arena"
        bound = f"{nbytes_text(memory.lower_bound_nbytes)}, efficiency {memory.efficiency:.1%}"
        yield "lower bound", bound
        yield "constants", nbytes_text(memory.constants_nbytes)
    if report.profile:
        yield "profile", ", ".join(f"{value} {key}" for key, value in report.profile.items())
    yield from ((f"time: {stage}", f"{spent:.3f} s") for stage, spent in report.seconds.items())


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
