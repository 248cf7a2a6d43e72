"""``measure_latency``: the latency of a new model, for its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from quantglow.foreign_types import Array
from quantglow.graph.border import declared_feeds
from quantglow.graph.graph import Graph
from quantglow.report import Report
from quantglow.report.peers.latency import latency_beside_float
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.fallback_model import FallbackModel, PartlyCompiledModel

Model = TypeVar("Model", CompiledModel, CompiledModel | FallbackModel)

NO_SAMPLES = "the latency was not measured: there are no samples"
NO_MODEL = "the latency was not measured: a graph is no ONNX model"


def with_latency(compiled: Model, model: Any, samples: Sequence[Mapping[str, Array]]) -> Model:
    """The model whose report has the latency of the first sample, or a note why not.

    ``model`` is the ONNX model that it was made of: path, bytes or ModelProto.
    """
    if not samples or isinstance(model, Graph):
        note = NO_MODEL if samples else NO_SAMPLES
        return reporting(compiled, notes=(note,))
    part = compiled.head if isinstance(compiled, PartlyCompiledModel) else compiled
    assert isinstance(part, CompiledModel)
    feeds = declared_feeds(part.specialisations.signature.inputs, samples[0])
    threads = part.num_threads
    try:
        found = latency_beside_float(lambda given: compiled.run(None, given), feeds, model, threads)
    except Exception as error:  # noqa: BLE001 - no figure costs the model that it is about
        return reporting(compiled, notes=(f"the latency was not measured: {error}",))
    return reporting(compiled, latency=found)


def reporting(compiled: Model, notes: tuple[str, ...] = (), **facts: Any) -> Model:
    """The model whose report has more facts and notes."""
    before: Callable[[], object] = compiled.reporter

    def report() -> Report:
        return with_facts(before(), notes, facts)

    return replace(compiled, reporter=report)


def with_facts(report: object, notes: tuple[str, ...], facts: Mapping[str, Any]) -> Report:
    """The report with more facts and notes."""
    assert isinstance(report, Report)
    return replace(report, notes=(*report.notes, *notes), **facts)
