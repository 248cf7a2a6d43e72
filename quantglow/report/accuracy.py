"""Accuracy in tables and in words: outputs, layers, the use of codes, the verdict; also beside
other quantizers.

>>> bars((0.5, 0.0, 1.0))
'▄ █'
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from quantglow.evaluation.accuracy import (
    EVERY,
    FEWEST_SAMPLES,
    SAME,
    UNSEEN,
    LayerAccuracy,
    OutputAccuracy,
    RightAnswers,
    worst_sqnr_db,
)
from quantglow.evaluation.baselines.latency import OURS
from quantglow.evaluation.baselines.quantizers import QuantizerComparison, QuantizerFigures
from quantglow.evaluation.metrics import CodeUse
from quantglow.report.speed import milliseconds
from quantglow.report.tables import Bar, Column, ReportTable, Tabular, nbytes_text, number, text_bar

MAX_DB = 100.0
"""SQNR in dB above which the figure of an output says no more."""

BARS = " ▁▂▃▄▅▆▇█"
"""Bars of a histogram in one line of text, the lowest first."""


def bars(shares: Iterable[float]) -> str:
    """A histogram in one line of text; the highest bar is full, and no value is invisible."""
    heights = np.array(tuple(shares), np.float64)
    if not heights.size or not heights.max():
        return ""
    steps = np.ceil(heights / heights.max() * (len(BARS) - 1)).astype(int)
    return "".join(BARS[step] for step in steps)


def _decibels(value: float | None) -> str:
    """The SQNR of an output as text, up to ``MAX_DB``."""
    return f"> {MAX_DB:.0f}" if value is not None and value > MAX_DB else number(value)


NAME = Column[LayerAccuracy]("layer", lambda layer: layer.name)
OP = Column[LayerAccuracy]("op", lambda layer: layer.op)
PRECISION = Column[LayerAccuracy]("precision", lambda layer: layer.precision)
REASON = Column[LayerAccuracy]("why float", lambda layer: layer.reason)
ALONE = Column[LayerAccuracy](
    "alone dB",
    lambda layer: layer.sensitivity_db,
    "{:.1f}",
    help="signal to noise of the worst output by this layer's error alone; low: bad",
)
LOCAL = Column[LayerAccuracy](
    "local dB",
    lambda layer: layer.sqnr_local_db,
    "{:.1f}",
    help="signal to noise of the layer's integer form on exact operands",
)
ACCUMULATED = Column[LayerAccuracy](
    "accumulated dB",
    lambda layer: layer.sqnr_accumulated_db,
    "{:.1f}",
    help="signal to noise of the layer's value with the errors of all layers before it",
)
"""Columns of layers, which tables and the page share."""

OUTPUTS: tuple[Column[OutputAccuracy], ...] = (
    Column("output", lambda output: output.name),
    Column(
        "SQNR dB",
        lambda output: output.sqnr_db,
        "{:.1f}",
        text=lambda output: _decibels(None if output.is_integer else output.sqnr_db),
        digits=4,
    ),
    Column(
        "cosine",
        lambda output: output.cosine,
        "{:.6f}",
        text=lambda output: number(None if output.is_integer else output.cosine, "{:.6f}"),
        digits=4,
    ),
    Column("max error", lambda output: output.max_error, "{:.4g}", digits=4),
    Column("top-1 agreement", lambda output: output.top1_agreement, "{:.1%}", digits=4),
)
LOGITS = Column[OutputAccuracy]("logits dB", lambda output: output.logits_db, _decibels)
"""Columns of outputs; texts leave out the errors of integers, which are no quantities."""


class LayerCodes(NamedTuple):
    """A layer and the use of its codes."""

    name: str
    codes: CodeUse


CODES: tuple[Column[LayerCodes], ...] = (
    Column("layer", lambda layer: layer.name),
    Column("limits", lambda layer: layer.codes.saturation, "{:.2%}"),
    Column(
        "codes",
        lambda layer: layer.codes.used,
        "{}",
        text=lambda layer: f"{layer.codes.used}/{layer.codes.levels}",
    ),
    Column("range seen", lambda layer: layer.codes.seen, "{:.0%}"),
    Column("99.9 %", lambda layer: layer.codes.core, "{:.0%}"),
    Column("codes taken", lambda layer: bars(layer.codes.shares)),
)
"""Columns of the codes of layers."""


def outputs_table(title: str, outputs: Sequence[OutputAccuracy]) -> ReportTable:
    """Table of the outputs, with their logits if they are known."""
    name, sqnr, *others = OUTPUTS
    logits = [LOGITS] if any(output.logits_db is not None for output in outputs) else []
    return ReportTable.of(title, (name, sqnr, *logits, *others), outputs)


def _error_columns(layers: Sequence[LayerAccuracy]) -> Iterator[Column[LayerAccuracy]]:
    """The columns of errors, sensitivities only if they are known."""
    if any(layer.sensitivity_db is not None for layer in layers):
        yield ALONE
    yield from (LOCAL, ACCUMULATED)


def layers_table(layers: Sequence[LayerAccuracy]) -> ReportTable:
    """Table of all operators, with the reason of float ones, and sensitivities if they are
    known.
    """
    counts = Counter(layer.precision for layer in layers)
    title = "Layers: " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))
    return ReportTable.of(title, (NAME, OP, PRECISION, *_error_columns(layers), REASON), layers)


def float_table(layers: Sequence[LayerAccuracy]) -> ReportTable:
    """Table of operators that stayed float, and why."""
    return ReportTable.of(f"Layers kept in float: {len(layers)}", (NAME, OP, REASON), layers)


def worst_tables(layers: Sequence[LayerAccuracy]) -> tuple[ReportTable, ReportTable]:
    """Table of some layers with all that is known of them: their errors, and their codes."""
    errors = (NAME, OP, *_error_columns(layers))
    uses = [LayerCodes(layer.name, layer.codes) for layer in layers if layer.codes]
    return (
        ReportTable.of(f"Worst int8 layers: {len(layers)}", errors, layers),
        ReportTable.of("Their codes", CODES, uses),
    )


def with_figure(layer: LayerAccuracy) -> str:
    """A layer and the figure that ``worst`` sorts by."""
    alone = layer.sensitivity_db
    return f"{layer.name} ({number(layer.sqnr_local_db if alone is None else alone)} dB)"


WHY_FEW = {
    UNSEEN: f"one in {EVERY} is held out, and large models are checked on fewer",
    SAME: f"none is held out of fewer than {FEWEST_SAMPLES} different ones",
}
"""The reason why a check has few samples, by their origin."""

CLOSENESS = (
    (40.0, 0.99, "very close to float"),
    (30.0, 0.97, "close to float"),
    (10.0, 0.8, "visibly off float"),
)
"""Minimum SQNR in dB of the worst output, minimum share of equal answers, and the words for
both."""

FAR = "far from float, and not usable as it is"

ALL_FLOAT_WARNING = (
    "WARNING: nothing is quantized; the notes and the table of layers say why. The outputs are "
    "those of the float model."
)
"""Headline of a model in which nothing is quantized."""

ALL_FLOAT = "no operator is int8"
"""Verdict on it."""


def headline(
    outputs: Sequence[OutputAccuracy],
    samples: int,
    origin: str,
    right: RightAnswers | None,
    has_warnings: bool,
    subject: str = "int8 is",
) -> str:
    """One or two sentences; ``has_warnings`` if the calibration data is unusual."""
    if not outputs:
        return ""
    answers = [o.top1_agreement for o in outputs if o.top1_agreement is not None]
    figures = [*_worst_figure(outputs)]
    figures += [f"{min(answers):.1%} equal answers"] if answers else []
    shown = f"{subject} {verdict(outputs)}: {', '.join(figures)}"
    few = f" ({WHY_FEW[origin]})" if samples < FEWEST_SAMPLES and origin in WHY_FEW else ""
    text = f"{shown} on {samples} sample(s) {origin}".rstrip() + few + "."
    text += f" {right}." if right else ""
    return f"{text} But see the warnings." if has_warnings else text


def _worst_figure(outputs: Sequence[OutputAccuracy]) -> Iterator[str]:
    """The SQNR of the worst output; none if all have integers."""
    worst = worst_sqnr_db(outputs)
    if worst is not None:
        is_logits = worst in [output.logits_db for output in outputs]
        yield f"{_decibels(worst)} dB{' in the logits' if is_logits else ''}"


def verdict(outputs: Sequence[OutputAccuracy]) -> str:
    """The words for the worst output; empty if no outputs were compared."""
    if not outputs:
        return ""
    answers = [o.top1_agreement for o in outputs if o.top1_agreement is not None]
    worst = worst_sqnr_db(outputs)
    return closeness(math.inf if worst is None else worst, min(answers, default=1.0))


def is_close(words: str) -> bool:
    """Whether a verdict needs no look at layers."""
    return words in [close for _, _, close in CLOSENESS[:2]]


def closeness(sqnr_db: float, agreement: float) -> str:
    """Closeness of two models in words."""
    fitting = (words for db, same, words in CLOSENESS if sqnr_db >= db and agreement >= same)
    return next(fitting, FAR)


def right_answers_text(right: RightAnswers) -> str:
    """The shares of right answers in a sentence."""
    return (
        f"Float finds {right.float_share:.2%} and int8 {right.int8_share:.2%} "
        f"of {right.labels} labels"
    )


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
        return f"{_accuracy_words(ours, others)}; {_latency_words(ours, others)}{doubt}."

    def charts(self) -> Iterator[Sequence[Bar]]:
        """Bars of accuracy and of latency."""
        for key, text in (("sqnr_db", "{:.1f} dB".format), ("seconds", milliseconds)):
            values = {row.name: getattr(row, key) for row in self.comparison.rows}
            figures = {n: v for n, v in values.items() if v is not None and 0 < v < float("inf")}
            longest = max(figures.values(), default=1.0)
            yield [Bar(n, v / longest, text(v), n == OURS) for n, v in figures.items()]


def _accuracy_words(ours: QuantizerFigures, others: Sequence[QuantizerFigures]) -> str:
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


def _latency_words(ours: QuantizerFigures, others: Sequence[QuantizerFigures]) -> str:
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
