"""Measurements of a model in all runtimes, the goals, and the tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.latency.latency import Measurement, median_ratio

MIN_INT8, MIN_FLOAT = 2.0, 1.2
"""Goals: geometric means of the CPU provider's time over ours."""

MIN_SHARE, MAX_SLOWDOWN, MAX_OVERHEAD, MAX_CREATION, MAX_MEMORY = 0.9, 1.05, 3.0, 1.5, 1.0
"""Goals: the share of cases in which OpenVINO's provider is slower; our time over the CPU
provider's; microseconds of a call over the machine code; making a session, and memory, over that
of the CPU provider and of ``qg.compile``."""


@dataclass
class CaseResult:
    """A model on some threads: what each runtime took, and what its child said of it.

    ``decibels``: of the provider's outputs beside the CPU provider's, the lowest one.
    ``cold``: what a child with an empty cache said.
    """

    name: str
    precision: str
    threads: int
    measured: dict[str, Measurement] = field(default_factory=dict)
    ready: dict[str, dict[str, Any]] = field(default_factory=dict)
    cold: dict[str, Any] = field(default_factory=dict)
    decibels: float = math.nan

    def ratio(self, runtime: str, over: str) -> float | None:
        """Median of the rounds' ratios of times; None where one of both has none."""
        pair = [self.measured.get(name) for name in (runtime, over)]
        if any(each is None or each.error or not each.round_ms for each in pair):
            return None
        one, other = (each for each in pair if each is not None)
        return median_ratio(one, other)

    def quotient(self, key: str, runtime: str, over: str) -> float | None:
        """The ratio of two figures of children."""
        if runtime not in self.ready or over not in self.ready:
            return None
        return float(self.ready[runtime][key] / self.ready[over][key])

    def memory(self, key: str) -> float | None:
        """Ratio of memory of the provider to that of ``qg.compile``, less what was there before."""
        if "quantglow" not in self.ready or "compile" not in self.ready:
            return None
        ours, other = self.ready["quantglow"], self.ready["compile"]
        return float((ours[key] - ours["before"]) / (other[key] - other["before"]))

    @property
    def title(self) -> str:
        return f"{self.name} {self.precision}, {self.threads} thread(s)"


def geometric_mean(values: Iterable[float]) -> float:
    """NaN of no values."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def speeds(results: Sequence[CaseResult], other: str, *precisions: str) -> list[float]:
    """Times of another runtime over ours."""
    ratios = [
        each.ratio(other, "quantglow")
        for each in results
        if not precisions or each.precision in precisions
    ]
    return [ratio for ratio in ratios if ratio is not None]


def verdict(results: Sequence[CaseResult], overhead: float) -> list[str]:
    """A line for each goal: whether it is met, the figure, the goal."""
    return [line for part in (_speed_goals, _other_goals) for line in part(results)] + [
        _line(overhead, "µs of a call over the machine code", MAX_OVERHEAD, is_most=True)
    ]


def _speed_goals(results: Sequence[CaseResult]) -> Iterator[str]:
    int8, real = speeds(results, "cpu", "QDQ"), speeds(results, "cpu", "float")
    yield _line(geometric_mean(int8), "times the CPU provider, QDQ", MIN_INT8)
    yield _line(geometric_mean(real), "times the CPU provider, float", MIN_FLOAT)
    if exact := speeds(results, "cpu exact", "QDQ"):
        text = "times the CPU provider with sums that do not saturate, QDQ"
        yield _line(geometric_mean(exact), text, MIN_INT8)
    peers = speeds(results, "openvino")
    if peers:
        share = sum(ratio > 1 for ratio in peers) / len(peers)
        yield _line(share, f"of {len(peers)} cases faster than OpenVINO's provider", MIN_SHARE)
    else:
        yield "not measured: OpenVINO's provider"
    slow = {each.title: each.ratio("quantglow", "cpu") or 0.0 for each in results}
    worst = max(slow, key=lambda title: slow[title])
    count = sum(ratio > MAX_SLOWDOWN for ratio in slow.values())
    yield _line(
        slow[worst], f"of the CPU provider's time at most: {worst}", MAX_SLOWDOWN, is_most=True
    ) + (f"; {count} of {len(slow)} cases are above it" if count else "")


def _other_goals(results: Sequence[CaseResult]) -> Iterator[str]:
    creation = [each.quotient("seconds", "quantglow", "cpu") for each in results]
    yield _line(
        geometric_mean(filter(None, creation)),
        "of the CPU provider's time to make a session, warm cache",
        MAX_CREATION,
        is_most=True,
    )
    for key in ("resident", "peak"):
        ratios = [each.memory(key) for each in results]
        yield _line(
            geometric_mean(filter(None, ratios)),
            f"of the {key} memory of qg.compile",
            MAX_MEMORY,
            is_most=True,
        )


def _line(figure: float, text: str, goal: float, *, is_most: bool = False) -> str:
    is_met = figure <= goal if is_most else figure >= goal
    return f"{'met' if is_met else 'MISSED'}: {figure:.2f} {text} (goal {goal:g})"


def time_table(results: Sequence[CaseResult]) -> str:
    """Markdown: milliseconds and ratios of each case."""
    titles = ["model", "precision", "threads", "provider ms", "/ CPU", "/ CPU, exact"]
    titles += ["/ OpenVINO", "/ compile", "dB", "in Python", "nodes"]
    return _table(titles, (_time_row(each) for each in results))


def _time_row(each: CaseResult) -> list[str]:
    ours = each.measured["quantglow"]
    others = ("cpu", "cpu exact", "openvino", "compile")
    ratios = [_cell(each.ratio("quantglow", other)) for other in others]
    ready = each.ready.get("quantglow", {"claim": "", "python": 0.0})
    time = "failed" if ours.error else f"{ours.median_ms:.3f}"
    nodes = ready["claim"].removeprefix("quantglow takes ").partition(" nodes")[0]
    python = f"{ready['python']:.0%}"
    figures = [time, *ratios, _cell(each.decibels, ".0f"), python, nodes]
    return [each.name, each.precision, str(each.threads), *figures]


def session_table(results: Sequence[CaseResult]) -> str:
    """Markdown: milliseconds to make sessions and of first calls; memory."""
    titles = ["model", "precision", "threads", "cold ms", "warm ms", "CPU ms", "warm / CPU"]
    titles += ["first call, cold", "warm", "CPU", "resident / compile", "peak / compile"]
    return _table(titles, (_session_row(each) for each in results if "cpu" in each.ready))


def _session_row(each: CaseResult) -> list[str]:
    empty: dict[str, Any] = {}
    sources = (each.cold, each.ready.get("quantglow", empty), each.ready["cpu"])

    def milliseconds(key: str) -> list[str]:
        return [f"{1e3 * source[key]:.1f}" if key in source else "" for source in sources]

    return [
        each.name,
        each.precision,
        str(each.threads),
        *milliseconds("seconds"),
        _cell(each.quotient("seconds", "quantglow", "cpu")),
        *milliseconds("first"),
        _cell(each.memory("resident")),
        _cell(each.memory("peak")),
    ]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    line: Callable[[Sequence[str]], str] = lambda cells: f"| {' | '.join(cells)} |"  # noqa: E731
    return "\n".join([line(titles), "| --- " * len(titles) + "|", *map(line, rows)])


def _cell(value: float | None, form: str = ".2f") -> str:
    return "" if value is None or math.isnan(value) else format(value, form)
