"""Times in tables and in words: layers, kernel calls, calls beside other runtimes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantglow.evaluation.baselines.latency import OURS, Latency, MeasuredLatency
from quantglow.evaluation.call_times import CallReport, CallSum
from quantglow.evaluation.layer_speed import LayerSpeed
from quantglow.report.tables import Bar, Column, ReportTable, text_bar

if TYPE_CHECKING:
    from quantglow.runtime.native.peak import Peak

LAYERS: tuple[Column[LayerSpeed], ...] = (
    Column("layer", lambda speed: speed.name),
    Column("op", lambda speed: speed.op),
    Column("precision", lambda speed: speed.precision),
    Column("float ms", lambda speed: speed.float_ms, "{:.4f}"),
    Column("int8 ms", lambda speed: speed.int8_ms, "{:.4f}"),
    Column("float / int8", lambda speed: speed.ratio, "{:.1f}"),
)
"""Columns of layers in float and in int8."""


def speed_table(speeds: Sequence[LayerSpeed]) -> ReportTable:
    """A row for each layer, the smallest gain of int8 first."""
    rows = sorted(speeds, key=lambda speed: speed.ratio)
    return ReportTable.of("Speed of layers, measured", LAYERS, rows)


CALL = Column[CallSum]("value", lambda calls: calls.name)
OP = Column[CallSum]("op", lambda calls: calls.op)
KERNEL = Column[CallSum]("kernel", lambda calls: calls.label)
COUNT = Column[CallSum]("calls", lambda calls: len(calls.calls), "{}")
FIGURES: tuple[Column[CallSum], ...] = (
    Column("µs", lambda calls: 1e6 * calls.seconds, "{:.1f}"),
    Column("% of all", lambda calls: calls.percent, "{:.1f}", missing=""),
    Column("MMAC", lambda calls: calls.macs / 1e6 or None, "{:.2f}", missing=""),
    Column("kB", lambda calls: calls.nbytes / 1e3, "{:.0f}"),
    Column("GMAC/s", lambda calls: calls.macs_per_second / 1e9 or None, "{:.0f}", missing=""),
    Column("limit µs", lambda calls: 1e6 * calls.limit_seconds, "{:.1f}"),
    Column("share", lambda calls: calls.limit_percent, "{:.0f} %", missing=""),
)
LOSS = Column[CallSum]("loss µs", lambda calls: 1e6 * calls.loss_seconds, "{:.1f}")
"""Columns of kernel calls."""


def _peak_text(peak: Peak) -> str:
    """The peaks of a processor, which limits are computed from."""
    return (
        f"{peak.threads} thread(s); limit: {peak.integer_macs / 1e9:.0f} int8 and "
        f"{peak.float_macs / 1e9:.0f} float GMAC/s, {peak.cached_nbytes / 1e9:.0f} GB/s"
    )


def calls_table(report: CallReport) -> ReportTable:
    """A row for each kernel call, and the sum."""
    title = f"Kernel calls, {_peak_text(report.peak)}"
    return ReportTable.of(title, (CALL, OP, KERNEL, *FIGURES), [*report.each, report.whole])


def kernels_table(report: CallReport) -> ReportTable:
    """A row for each kind of kernel, the one with the largest loss first."""
    return ReportTable.of("By kernel", (OP, KERNEL, COUNT, *FIGURES, LOSS), report.by_kernel)


def milliseconds(seconds: float) -> str:
    """A duration in milliseconds, to three digits."""
    return f"{1e3 * seconds:.3g} ms"


def latency_text(latency: MeasuredLatency) -> str:
    """The latency of a call, beside that of onnxruntime."""
    text = f"{milliseconds(latency.seconds)} a call on {latency.num_threads} thread(s) here"
    return f"{text}, {_beside_float(latency)}" + (f" (but {latency.busy})" if latency.busy else "")


def _beside_float(latency: MeasuredLatency) -> str:
    """The latency of onnxruntime, and the ratio of both if the machine was idle."""
    if latency.float_seconds is None or latency.ratio is None:
        return f"onnxruntime's float not measured: {latency.reason}"
    both = f"onnxruntime's float {milliseconds(latency.float_seconds)}"
    if latency.busy:  # threads that wait for a processor make any ratio
        return both
    faster = latency.ratio >= 1
    ratio = latency.ratio if faster else 1 / latency.ratio
    words = f"{ratio:.1f} times as {'fast' if faster else 'slow'}"
    return f"{both}: {words}"


def latency_bars(latency: MeasuredLatency) -> Sequence[Bar]:
    """A bar for each runtime."""
    pairs = [(OURS, latency.seconds)]
    if latency.float_seconds is not None:
        pairs.append(("onnxruntime float", latency.float_seconds))
    longest = max(seconds for _, seconds in pairs)
    return [Bar(n, s / longest, milliseconds(s), n == OURS) for n, s in pairs]


@dataclass(frozen=True)
class LatencyComparison:
    """Latencies of quantglow, first, and of other runtimes."""

    latencies: Sequence[Latency]

    @property
    def verdict(self) -> str:
        """A sentence about the fastest of the others."""
        ours, *others = self.latencies
        ran = [baseline for baseline in others if not baseline.reason]
        if not ran:
            return "no other runtime ran the model"
        best = min(ran, key=lambda baseline: baseline.median)
        ratio = best.median / ours.median
        if ratio >= 1:
            return f"{OURS} is {ratio:.2f} times as fast as {best.runtime}"
        return f"{best.runtime} is {1 / ratio:.2f} times as fast as {OURS}"

    def table(self) -> ReportTable:
        """A row for each runtime, with a bar as long as its median, or the reason for none."""
        ours = self.latencies[0].median
        longest = max(each.median for each in self.latencies if not each.reason)

        def cells(each: Latency) -> tuple[str, ...]:
            if each.reason:
                return (each.runtime, "", "", "", each.reason)
            figures = (1e3 * each.median, 1e3 * each.percentile(99), each.median / ours)
            texts = map(str.format, ("{:.3f}", "{:.3f}", "{:.2f}"), figures)
            return (each.runtime, *texts, text_bar(each.median / longest))

        columns = ("runtime", "median ms", "p99 ms", f"of {OURS}", "")
        rows = list(map(cells, self.latencies))
        return ReportTable("Latency", columns, rows, frozenset(columns[1:4]))

    def to_json(self) -> dict[str, Any]:
        """The figures in types that ``json`` writes."""
        return {
            "verdict": self.verdict,
            "runtimes": [each.to_json() for each in self.latencies],
        }
