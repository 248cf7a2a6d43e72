"""All sections of a page as plain data; ``quantglow/webpage/assets/page.js`` reads it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np

from quantglow.graph.drawing import DrawnGraph
from quantglow.graph.graph import Graph
from quantglow.profiling.drawing import drawn
from quantglow.report.accuracy.accuracy import LayerAccuracy, OutputAccuracy, plain
from quantglow.report.page.advice import advice
from quantglow.report.page.layers import layer_rows
from quantglow.report.page.source import PageSource, clipped_share, ranges_of
from quantglow.report.page.timeline import timeline, trace_in
from quantglow.report.speed.speed import LayerSpeed
from quantglow.version import __version__
from quantglow.webpage import page

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
