"""Page that explains a model: its source, all its sections as plain data, and the timeline.

``support/display/assets/page.js`` reads the data.  The timeline comes from a trace in Chrome's
format, whose file may be anybody's.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.evaluation.accuracy import LayerAccuracy, OutputAccuracy, plain
from quantglow.evaluation.layer_speed import LayerSpeed
from quantglow.ir.graph.graph import DrawnGraph, Graph
from quantglow.ir.types import TensorType
from quantglow.profiling import Histogram
from quantglow.profiling.profiles import Range, drawn
from quantglow.quantization.options import IgnoredScope, QuantizationConfig
from quantglow.report.advice import advice, layer_rows
from quantglow.support.arguments import file_path
from quantglow.support.classes import Concise
from quantglow.support.display.webpage import page
from quantglow.support.errors import FileFormatError
from quantglow.version import __version__

UNNAMED = "model"
LEVELS = 256
"""Number of codes of int8: a value within a step of the range is rounded, not clipped."""

MAX_EVENTS = 20_000
"""Maximum number of events on a page, the first ones."""

Row = tuple[int, str, str, float, float]
"""Position of the thread, name, category, begin and duration in microseconds."""

OUTPUTS = ("output", "SQNR dB", "cosine", "max error", "top-1 agreement")
"""Columns of the table of outputs."""

MISSING = (
    "A file of a model has no histograms of its calibration data, to be small. Remedy: write the "
    "page where the model is quantized, by report.to_html(), or by quantglow debug MODEL "
    "--calibration-data DATA --output page.html."
)

TraceLike = Mapping[str, Any] | str | os.PathLike[str] | None
"""A trace, the path of one, or none."""


@dataclass(frozen=True)
class Figures:
    """Measured figures, as ``Report`` has them; ``facts`` are further terms and their values."""

    layers: Sequence[LayerAccuracy] = ()
    outputs: Sequence[OutputAccuracy] = ()
    speeds: Sequence[LayerSpeed] = ()
    verdict: str = ""
    notes: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()


def page_of(
    graph: Graph | None, source: PageSource | None, figures: Figures, trace: TraceLike = None
) -> str:
    """The page of a model, as far as it is known; ``trace`` replaces that of the source."""
    known = trace_in(trace) if isinstance(trace, str | os.PathLike) else trace
    own = source or PageSource()
    data = page_data(graph, own if known is None else replace(own, trace=known), figures)
    if source is None and any(layer.precision == "int8" for layer in figures.layers):
        data["missing"] = MISSING
    return page(own.title, data)


def page_data(graph: Graph | None, source: PageSource, figures: Figures) -> dict[str, Any]:
    """The sections of a page."""
    ranges = {} if graph is None else ranges_of(graph)
    found = {name: each for name, each in source.histograms.items() if each.count}
    clipped = {n: clipped_share(found[n], ranges[n]) for n in found.keys() & ranges.keys()}
    layers, speeds = figures.layers, figures.speeds
    data: dict[str, Any] = {
        "verdict": figures.verdict,
        "layers": layer_rows(layers, speeds),
        "outputs": {"columns": OUTPUTS, "rows": output_rows(figures.outputs)},
        "advice": [each.to_json() for each in advice(layers, speeds, clipped)],
        "histograms": {name: drawn(each, ranges.get(name)) for name, each in found.items()},
        "notes": list(figures.notes),
        "facts": [*figures.facts, *facts(source)],
    }
    if graph is not None:
        data["graph"] = DrawnGraph.of(graph).to_json()
    return data if source.trace is None else {**data, "timeline": timeline(source.trace)}


def output_rows(outputs: Sequence[OutputAccuracy]) -> list[list[Any]]:
    """A row for each output."""
    rows = ((o.name, o.sqnr_db, o.cosine, o.max_error, o.top1_agreement) for o in outputs)
    return [list(plain(row)) for row in rows]


def facts(source: PageSource) -> Iterator[tuple[str, str]]:
    """Date, versions, options."""
    yield "date", datetime.now().astimezone().isoformat(" ", "seconds")
    yield "quantglow", __version__
    yield "Python", platform.python_version()
    yield "NumPy", np.__version__
    yield "processor", platform.machine()
    yield from source.options.items()


def without_page(report: Any) -> dict[str, Any]:
    """The fields of a report in types that ``json`` writes, but ``graph`` and ``source``."""
    found = dict(plain(asdict(replace(report, graph=None, source=None))))
    return {key: value for key, value in found.items() if key not in ("graph", "source")}


@dataclass(frozen=True, repr=False)
class PageSource(Concise):
    """The name of a model, histograms of its values by name, options, and a timeline in Chrome's
    format.
    """

    title: str = UNNAMED
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    trace: Mapping[str, Any] | None = None

    @staticmethod
    def of(
        model: Any,
        histograms: Mapping[str, Histogram],
        config: QuantizationConfig,
        trace: Mapping[str, Any] | None = None,
    ) -> PageSource:
        """The source of the page of what was made of ``model``."""
        return PageSource(name_of(model), histograms, texts_of(config), trace)


def name_of(model: Any) -> str:
    """The name of a model's file without its folder, which the page keeps to itself."""
    return Path(model).name if isinstance(model, str | os.PathLike) else UNNAMED


def ranges_of(graph: Graph) -> dict[str, Range]:
    """The range of each quantized value; that of a conversion counts for the value in its name."""
    found: dict[str, Range] = {}
    for node in graph.nodes:
        if (stored := stored_range(node.type)) is not None:
            found[node.name] = stored
            found.setdefault(node.name.rpartition(":")[0], stored)
    return found


def stored_range(kind: TensorType) -> Range | None:
    """The reals of the lowest and the highest code; None for float, and for a range per channel."""
    if kind.quant is None or kind.quant.axis is not None:
        return None
    params = kind.params
    low, high = (float(params.scale) * (code - params.zero_point) for code in kind.dtype.limits)
    return low, high


def texts_of(config: QuantizationConfig) -> dict[str, str]:
    """The options as texts, without those that are for weights in groups alone."""
    unused = () if config.weights else ("weights", "group_size", "activations", "symmetric_weights")
    names = (each.name for each in fields(config) if each.name not in unused)
    return {name: text_of(getattr(config, name)) for name in names}


def text_of(value: Any) -> str:
    """An option in words."""
    if isinstance(value, IgnoredScope):
        return text_of((*value.names, *value.patterns, *value.types))
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def clipped_share(histogram: Histogram, stored: Range) -> float:
    """The share of the profiled values that a range does not hold, but one step beyond it."""
    low, high = stored
    step = (high - low) / LEVELS
    centres, counts = histogram.centres, histogram.counts
    outside = (centres < low - step) | (centres > high + step)
    return float(counts[outside].sum() / counts.sum())


def trace_in(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The trace of a file, as ``compiled.trace`` writes it.  Raises ``FileFormatError``."""
    file = file_path("trace", path)
    try:
        with open(file, encoding="utf-8") as opened:
            found = json.load(opened)
        timeline(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(
            f"{file!r} is no timeline in Chrome's format: {error!r}. "
            "Remedy: write one with compiled.trace(feeds, path)."
        ) from error
    return dict(found)


def timeline(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Names of threads, and their events."""
    numbers: dict[Any, int] = {}
    events = [
        (numbers.setdefault(thread, len(numbers)), *rest)
        for thread, *rest in rows(trace)[:MAX_EVENTS]
    ]
    named = dict(named_threads(trace))
    return {"threads": [named.get(n, f"thread {n}") for n in numbers], "events": events}


def rows(trace: Mapping[str, Any]) -> list[Row]:
    """Events that have a duration.  Raises for what is no trace."""
    return [
        (event["tid"], str(event["name"]), str(event.get("cat", "")), *times(event))
        for event in trace["traceEvents"]
        if event["ph"] == "X"
    ]


def times(event: Mapping[str, Any]) -> tuple[float, float]:
    """Begin and duration.  Raises ``ValueError`` for infinite ones."""
    begin, duration = float(event["ts"]), float(event["dur"])
    if not (math.isfinite(begin) and math.isfinite(duration)):
        raise ValueError("an event has no finite time")
    return begin, duration


def named_threads(trace: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Each thread that has a name, and it."""
    for event in trace["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "thread_name":
            yield event["tid"], str(event["args"]["name"])
