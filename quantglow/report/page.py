"""Page that explains a model: its source, all its sections as plain data, and the timeline.

``assets/page.js`` reads the data.  The timeline comes from a trace in Chrome's format, whose file
may be anybody's.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.evaluation.accuracy import LayerAccuracy, OutputAccuracy, plain
from quantglow.evaluation.layer_speed import LayerSpeed
from quantglow.evaluation.metrics import CodeUse, clipped_share, quantized_ranges
from quantglow.evaluation.report import UNNAMED, PageSource, TraceLike
from quantglow.ir.graph.graph import Graph
from quantglow.profiling import Histogram
from quantglow.quantization.options import QuantizationConfig
from quantglow.report.accuracy import (
    ACCUMULATED,
    ALONE,
    LOCAL,
    NAME,
    OP,
    OUTPUTS,
    PRECISION,
    REASON,
)
from quantglow.report.drawing import DrawnGraph, histogram_bars
from quantglow.report.sections import advice
from quantglow.report.tables import Column
from quantglow.report.webpage import Page
from quantglow.support.arguments import file_path
from quantglow.support.errors import FileFormatError
from quantglow.version import __version__


def build_page_source(
    model: Any,
    histograms: Mapping[str, Histogram],
    config: QuantizationConfig,
    trace: Mapping[str, Any] | None = None,
) -> PageSource:
    """The source of the page of what was made of ``model``."""
    return PageSource(model_name(model), histograms, config.texts, trace)


def model_name(model: Any) -> str:
    """The name of a model's file without its folder, which the page keeps to itself."""
    return Path(model).name if isinstance(model, str | os.PathLike) else UNNAMED


PERCENT = 100

MAX_EVENTS = 20_000
"""Maximum number of events on a page, the first ones."""

Row = tuple[int, str, str, float, float]
"""Position of the thread, name, category, begin and duration in microseconds."""


def trace_in(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The trace of a file, as ``compiled.trace`` writes it.  Raises ``FileFormatError``."""
    file = file_path("trace", path)
    try:
        with open(file, encoding="utf-8") as opened:
            trace = json.load(opened)
        timeline(trace)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(
            f"{file!r} is no timeline in Chrome's format: {error!r}. "
            "Remedy: write one with compiled.trace(feeds, path)."
        ) from error
    return dict(trace)


def timeline(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Names of threads, and their events."""
    numbers: dict[Any, int] = {}
    events = [
        (numbers.setdefault(thread, len(numbers)), *fields)
        for thread, *fields in rows(trace)[:MAX_EVENTS]
    ]
    named = dict(_thread_names(trace))
    return {"threads": [named.get(n, f"thread {n}") for n in numbers], "events": events}


def rows(trace: Mapping[str, Any]) -> list[Row]:
    """Events that have a duration.  Raises for what is no trace."""
    return [
        (event["tid"], str(event["name"]), str(event.get("cat", "")), *_times(event))
        for event in trace["traceEvents"]
        if event["ph"] == "X"
    ]


def _times(event: Mapping[str, Any]) -> tuple[float, float]:
    """Begin and duration.  Raises ``ValueError`` for infinite ones."""
    begin, duration = float(event["ts"]), float(event["dur"])
    if not (math.isfinite(begin) and math.isfinite(duration)):
        raise ValueError("an event has no finite time")
    return begin, duration


def _thread_names(trace: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Each thread that has a name, and it."""
    for event in trace["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "thread_name":
            yield event["tid"], str(event["args"]["name"])


MISSING = (
    "A file of a model has no histograms of its calibration data, to be small. Remedy: write the "
    "page where the model is quantized, by report.to_html(), or by quantglow debug MODEL "
    "--calibration-data DATA --output page.html."
)


def _layer_columns(speeds: Sequence[LayerSpeed]) -> dict[str, Column[LayerAccuracy]]:
    """Columns of layers, by the names that the page's scripts know: decibels, milliseconds, shares
    in percent; None where not measured.
    """
    ms = {speed.name: speed.milliseconds for speed in speeds}
    float_ms = {speed.name: speed.float_ms for speed in speeds}
    range_help = "share of the range between the smallest and the largest profiled value"
    core = "share of the range that 99.9 % of the profiled values need; small: outliers"
    limits = "share of the values on the lowest or highest code (0 does not count)"
    program = "time of its kernels in the float program"
    return {
        "name": NAME,
        "op": OP,
        "precision": PRECISION,
        "alone": ALONE,
        "local": LOCAL,
        "accumulated": ACCUMULATED,
        "ms": _time_column("ms", ms, "time of its kernels, measured"),
        "float_ms": _time_column("float ms", float_ms, program),
        "limits": _of_codes("limits %", lambda use: _percent(use.saturation), 1, limits),
        "codes": _of_codes("codes", lambda use: use.used, 0, "codes that occurred"),
        "seen": _of_codes("range seen %", lambda use: _percent(use.seen), 0, range_help),
        "core": _of_codes("99.9 % in %", lambda use: _percent(use.core), 0, core),
        "reason": REASON,
    }


def _time_column(title: str, times: Mapping[str, float], meaning: str) -> Column[LayerAccuracy]:
    """A column of times by layer, in milliseconds."""
    return Column(title, lambda layer: times.get(layer.name), "{:.4f}", digits=4, help=meaning)


def _of_codes(
    title: str, value: Callable[[CodeUse], float | None], digits: int, meaning: str
) -> Column[LayerAccuracy]:
    """A column of the use of codes; empty for layers without codes."""

    def cell(layer: LayerAccuracy) -> float | None:
        return None if layer.codes is None else value(layer.codes)

    return Column(title, cell, f"{{:.{digits}f}}", digits=digits, help=meaning)


def _percent(share: float | None) -> float | None:
    """A share in percent."""
    return None if share is None else PERCENT * share


@dataclass(frozen=True)
class Figures:
    """Measured figures, as ``Report`` has them; ``facts`` are further terms and their values."""

    layers: Sequence[LayerAccuracy] = ()
    outputs: Sequence[OutputAccuracy] = ()
    speeds: Sequence[LayerSpeed] = ()
    verdict: str = ""
    notes: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()


def graph_page(
    graph: Graph | None, source: PageSource | None, figures: Figures, trace: TraceLike = None
) -> Page:
    """The page of a model, as far as it is known; ``trace`` replaces that of the source."""
    events = trace_in(trace) if isinstance(trace, str | os.PathLike) else trace
    shown = source or PageSource()
    shown = shown if events is None else replace(shown, trace=events)
    data = page_data(graph, shown, figures)
    if source is None and any(layer.precision == "int8" for layer in figures.layers):
        data["missing"] = MISSING
    return Page.of(shown.title, data)


def page_data(graph: Graph | None, source: PageSource, figures: Figures) -> dict[str, Any]:
    """The sections of a page."""
    ranges = {} if graph is None else quantized_ranges(graph)
    histograms = {name: each for name, each in source.histograms.items() if each.count}
    clipped = {
        name: clipped_share(histograms[name], ranges[name])
        for name in histograms.keys() & ranges.keys()
    }
    layers, speeds = figures.layers, figures.speeds
    columns = _layer_columns(speeds)
    data: dict[str, Any] = {
        "verdict": figures.verdict,
        "columns": [{"key": key, **heading(column)} for key, column in columns.items()],
        "layers": [{k: plain(c.value(layer)) for k, c in columns.items()} for layer in layers],
        "outputs": {
            "columns": list(map(heading, OUTPUTS)),
            "rows": [[plain(c.value(output)) for c in OUTPUTS] for output in figures.outputs],
        },
        "advice": [each.to_json() for each in advice(layers, speeds, clipped)],
        "histograms": {n: histogram_bars(each, ranges.get(n)) for n, each in histograms.items()},
        "notes": list(figures.notes),
        "facts": [*figures.facts, *facts(source)],
    }
    if graph is not None:
        data["graph"] = DrawnGraph.of(graph).to_json()
    return data if source.trace is None else {**data, "timeline": timeline(source.trace)}


def heading(column: Column[Any]) -> dict[str, Any]:
    """A column as the page's scripts read it."""
    return {
        "title": column.title,
        "number": column.is_number,
        "digits": column.digits,
        "help": column.help or None,
    }


def facts(source: PageSource) -> Iterator[tuple[str, str]]:
    """Date, versions, options."""
    yield "date", datetime.now().astimezone().isoformat(" ", "seconds")
    yield "quantglow", __version__
    yield "Python", platform.python_version()
    yield "NumPy", np.__version__
    yield "processor", platform.machine()
    yield from source.options.items()
