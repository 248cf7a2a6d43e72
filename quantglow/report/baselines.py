"""Comparison with other quantizers: a table, bars, and a verdict in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quantglow.evaluation.baselines.latency import OURS
from quantglow.evaluation.baselines.quantizers import QuantizerComparison, QuantizerFigures
from quantglow.report.speed import milliseconds
from quantglow.report.tables import Bar, Column, ReportTable, Tabular, nbytes_text, text_bar

EQUAL = 0.01
"""Difference of two figures, as a share, below which they are called equal."""

QUANTIZERS: tuple[Column[QuantizerFigures], ...] = (
    Column("quantizer", lambda row: row.name),
    Column("SQNR dB", lambda row: row.sqnr_db, "{:.1f}"),
    Column("equal answers", lambda row: row.agreement, "{:.1%}"),
    Column("latency", lambda row: row.seconds, milliseconds),
    Column("file", lambda row: row.nbytes, nbytes_text),
    Column("calibration", lambda row: row.calibration_seconds, "{:.1f} s"),
)
"""Columns of quantizers, before the bars of their latencies."""


@dataclass(frozen=True)
class QuantizerComparisonView(Tabular):
    """A comparison of quantizers: the verdict, a table, bars."""

    comparison: QuantizerComparison

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The notes of the comparison."""
        return self.comparison.notes

    def tables(self) -> Iterator[ReportTable]:
        """A row for each quantizer, with a bar as long as its latency."""
        figures, rows = self.comparison, self.comparison.rows
        longest = max((row.seconds for row in rows if row.seconds is not None), default=1.0)

        def bar(row: QuantizerFigures) -> str:
            return "" if row.seconds is None else text_bar(row.seconds / longest)

        logits = any(o.logits_db is not None for row in rows for o in row.outputs)
        title = f"int8 beside float, {figures.samples} sample(s) {figures.origin}"
        title += f", {figures.num_threads} thread(s){', decibels of logits, too' if logits else ''}"
        yield ReportTable.of(title, (*QUANTIZERS, Column("", bar)), rows)

    def opening(self) -> Iterator[str]:
        """The verdict."""
        yield self.verdict

    @property
    def verdict(self) -> str:
        """A sentence on accuracy and one on latency: quantglow beside the best of the others."""
        _, ours, *others = self.comparison.rows
        if not any(row.sqnr_db is not None for row in others):
            return "No other quantizer made a model that runs."
        doubt = ", but the machine is busy" if self.comparison.busy else ""
        return f"{accuracy_words(ours, others)}; {latency_words(ours, others)}{doubt}."

    def charts(self) -> Iterator[Sequence[Bar]]:
        """Bars of accuracy and of latency."""
        for key, text in (("sqnr_db", "{:.1f} dB".format), ("seconds", milliseconds)):
            values = {row.name: getattr(row, key) for row in self.comparison.rows}
            figures = {n: v for n, v in values.items() if v is not None and 0 < v < float("inf")}
            longest = max(figures.values(), default=1.0)
            yield [Bar(n, v / longest, text(v), n == OURS) for n, v in figures.items()]


def accuracy_words(ours: QuantizerFigures, others: Sequence[QuantizerFigures]) -> str:
    """The SQNR of quantglow beside that of the best of the others."""
    best = max((r for r in others if r.sqnr_db is not None), key=lambda r: r.sqnr_db or 0.0)
    if ours.sqnr_db is None or best.sqnr_db is None:
        return "the accuracy of quantglow is not known"
    margin = ours.sqnr_db - best.sqnr_db
    if abs(margin) < 0.05:
        return f"quantglow is as close to float as {best.name} ({ours.sqnr_db:.1f} dB)"
    side = "closer to" if margin > 0 else "further from"
    pair = f"{ours.sqnr_db:.1f} and {best.sqnr_db:.1f} dB"
    return f"quantglow is {abs(margin):.1f} dB {side} float than {best.name} ({pair})"


def latency_words(ours: QuantizerFigures, others: Sequence[QuantizerFigures]) -> str:
    """The latency of quantglow beside that of the fastest of the others."""
    ran = [(row.seconds, row.name) for row in others if row.seconds is not None]
    if ours.seconds is None or not ran:
        return "no other latency was measured"
    seconds, name = min(ran)
    ratio = seconds / ours.seconds
    if abs(ratio - 1) < EQUAL:
        return f"it is as fast as {name}"
    words = "fast" if ratio > 1 else "slow"
    return f"it is {max(ratio, 1 / ratio):.2f} times as {words} as {name}"
