"""int8 models of several quantizers: accuracy, latency, size and calibration time of each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quantglow.backends.onnxruntime.session import EXACT_SUMS
from quantglow.report.accuracy.accuracy import OutputAccuracy, plain, worst_sqnr_db
from quantglow.report.display.bars import Bar, html_bars, text_bar
from quantglow.report.display.tables import Table, Tabular, nbytes_text, number
from quantglow.report.peers.latency import milliseconds

FLOAT = "onnxruntime float"
"""The row of the float model, which the outputs of all others are compared with."""
EQUAL = 0.01
"""Difference of two figures, as a share, below which they are called equal."""


@dataclass(frozen=True)
class QuantizerFigures:
    """A row: what is known of a quantizer's model, and the ``reason`` for what is not.

    ``sqnr_db`` and ``agreement`` are those of the worst of ``outputs``, on samples that calibration
    did not see; their logits count where all rows have them.  ``exact_sqnr_db`` is the former with
    exact sums, if users have to ask for these here; ``nbytes`` is the size of its file,
    ``calibration_seconds`` the time from float to int8.
    """

    name: str
    sqnr_db: float | None = None
    agreement: float | None = None
    seconds: float | None = None
    nbytes: int | None = None
    calibration_seconds: float | None = None
    exact_sqnr_db: float | None = None
    reason: str = ""
    outputs: tuple[OutputAccuracy, ...] = field(default=(), repr=False)
    exact_outputs: tuple[OutputAccuracy, ...] = field(default=(), repr=False)

    def measured(self, positions: Collection[int]) -> QuantizerFigures:
        """The figures of the worst output, with logits of the outputs at some positions only."""

        def chosen(outputs: Sequence[OutputAccuracy]) -> tuple[OutputAccuracy, ...]:
            return tuple(
                o if p in positions else replace(o, logits_db=None) for p, o in enumerate(outputs)
            )

        outputs, exact = chosen(self.outputs), chosen(self.exact_outputs)
        answers = [o.top1_agreement for o in outputs if o.top1_agreement is not None]
        return replace(
            self,
            outputs=outputs,
            exact_outputs=exact,
            sqnr_db=worst_sqnr_db(outputs),
            exact_sqnr_db=worst_sqnr_db(exact),
            agreement=min(answers) if answers else None,
        )

    @property
    def caveat(self) -> str:
        """A note on sums that are not exact, or nothing."""
        if self.exact_sqnr_db is None:
            return ""
        return (
            f"{self.name}: sums saturate at 16 bits on this processor; {self.exact_sqnr_db:.1f} dB "
            f'with the session option {EXACT_SUMS}="1", which is slower'
        )

    def cells(self, longest: float) -> tuple[str, ...]:
        """The cells of the table."""
        bar = text_bar(self.seconds / longest) if self.seconds is not None else ""
        return (
            self.name,
            number(self.sqnr_db),
            number(self.agreement, "{:.1%}"),
            "–" if self.seconds is None else milliseconds(self.seconds),
            "–" if self.nbytes is None else nbytes_text(self.nbytes),
            number(self.calibration_seconds, "{:.1f} s"),
            bar,
        )


@dataclass(frozen=True)
class QuantizerComparison(Tabular):
    """``print`` it, show it in a notebook, or take ``to_json()``.

    ``rows`` are the float model, quantglow, and the others; ``origin`` says which ``samples`` the
    outputs were compared on; ``busy`` is a note on other work of the machine.
    """

    rows: Sequence[QuantizerFigures]
    samples: int
    origin: str
    num_threads: int
    busy: str = ""

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Reasons of those that failed, inexact sums, and the note on a busy machine."""
        failed = (f"{row.name}: {row.reason}" for row in self.rows if row.reason)
        caveats = filter(None, (row.caveat for row in self.rows))
        return (*failed, *caveats, *([f"latencies are doubtful: {self.busy}"] if self.busy else []))

    def tables(self) -> Iterator[Table]:
        """A row for each quantizer, with a bar as long as its latency."""
        longest = max((row.seconds for row in self.rows if row.seconds is not None), default=1.0)
        logits = any(o.logits_db is not None for row in self.rows for o in row.outputs)
        columns = ("quantizer", "SQNR dB", "equal answers", "latency", "file", "calibration", "")
        title = f"int8 beside float, {self.samples} sample(s) {self.origin}"
        title += f", {self.num_threads} thread(s){', decibels of logits, too' if logits else ''}"
        rows = [row.cells(longest) for row in self.rows]
        yield Table(title, columns, rows, frozenset(columns[1:6]))

    def opening(self) -> Iterator[str]:
        """The verdict."""
        yield self.verdict

    @property
    def verdict(self) -> str:
        """A sentence on accuracy and one on latency: quantglow beside the best of the others."""
        _, ours, *others = self.rows
        if not any(row.sqnr_db is not None for row in others):
            return "No other quantizer made a model that runs."
        doubt = ", but the machine is busy" if self.busy else ""
        return f"{accuracy_words(ours, others)}; {latency_words(ours, others)}{doubt}."

    def to_json(self) -> dict[str, Any]:
        """The figures in types that ``json`` writes."""
        outputs = ("outputs", "exact_outputs")
        rows = [
            plain({k: v for k, v in vars(row).items() if k not in outputs}) for row in self.rows
        ]
        facts = {"samples": self.samples, "origin": self.origin, "num_threads": self.num_threads}
        return {"verdict": self.verdict, "rows": rows, **facts, "busy": self.busy}

    def _repr_html_(self) -> str:
        charts = "".join(map(html_bars, self.charts()))
        return f"{super()._repr_html_()}{charts}"

    def charts(self) -> Iterator[Sequence[Bar]]:
        """Bars of accuracy and of latency."""
        for key, text in (("sqnr_db", "{:.1f} dB".format), ("seconds", milliseconds)):
            known = {row.name: getattr(row, key) for row in self.rows}
            figures = {n: v for n, v in known.items() if v is not None and 0 < v < float("inf")}
            longest = max(figures.values(), default=1.0)
            yield [Bar(n, v / longest, text(v), n == "quantglow") for n, v in figures.items()]


def of_one_mechanism(rows: Sequence[QuantizerFigures]) -> list[QuantizerFigures]:
    """The rows with the figures of their outputs; logits count where all that ran have them."""
    ran = [outputs for row in rows for outputs in (row.outputs, row.exact_outputs) if outputs]
    known = (outputs for outputs in zip(*ran, strict=True))
    positions = {p for p, all_of in enumerate(known) if None not in [o.logits_db for o in all_of]}
    return [row.measured(positions) if row.outputs else row for row in rows]


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
