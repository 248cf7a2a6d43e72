"""Accuracy of the outputs against the float model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.interpreter import interpret
from quantglow.report.accuracy import OutputAccuracy
from quantglow.report.metrics import Sums, class_like, top1_agreement
from quantglow.types import Array

Feeds = Mapping[str, Array]
"""Input name -> array."""
Runner = Callable[[Feeds], list[Array]]
"""What computes all outputs, in order."""


def output_accuracy(
    graph: Graph, run: Runner, expected: Runner, samples: Sequence[Feeds]
) -> tuple[OutputAccuracy, ...]:
    """Each output of ``run`` against ``expected`` over the samples."""
    pairs = [(expected(feeds), run(feeds)) for feeds in samples]
    entries = []
    for position, (name, node) in enumerate(graph.outputs):
        wanted = [reference[position] for reference, _ in pairs]
        found = [np.reshape(values[position], node.type.shape) for _, values in pairs]
        entries.append(_entry(name, wanted, found, class_like(node.type)))
    return tuple(entries)


def _entry(
    name: str, wanted: Sequence[Array], found: Sequence[Array], classes: bool
) -> OutputAccuracy:
    sums = sum(map(Sums.of, wanted, found), Sums())
    pairs = zip(wanted, found, strict=True) if classes else ()
    hits = [top1_agreement(_rows(w), _rows(f)) for w, f in pairs]
    agreement = float(np.mean(hits)) if hits else None
    return OutputAccuracy(name, sums.sqnr_db, sums.cosine, sums.max_error, agreement)


def reference_runner(
    model: object, float_graph: Graph, samples: Sequence[Feeds]
) -> tuple[Runner, str, str]:
    """What gives the float results, its name, and a note: onnxruntime, or our interpreter."""
    if isinstance(model, Graph):
        return lambda feeds: interpret(float_graph, feeds), "the float interpreter", ""
    # Only here: who does not verify does not need onnxruntime.
    from quantglow.report.onnxruntime_check import ReferenceRuntimeError, float_runner

    try:
        run = float_runner(model)
        run(samples[0])
    except ReferenceRuntimeError as error:
        return lambda feeds: interpret(float_graph, feeds), "the float interpreter", str(error)
    return run, "onnxruntime (float)", ""


def _rows(array: Array) -> Array:
    return array.reshape(array.shape[0], -1)
