"""The check of a compiled model against the float model, on samples of the calibration data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantglow.graph.graph import Graph
from quantglow.profiling import Profile
from quantglow.quantization import QuantizationReport
from quantglow.report.accuracy import LayerAccuracy, OutputAccuracy
from quantglow.report.layers import layer_accuracy
from quantglow.report.outputs import Runner, output_accuracy, reference_runner
from quantglow.types import Array

MAX_SAMPLES = 8
"""Samples that are kept for the check."""

LAYER_ELEMENTS = 2_000_000
"""Values of the float graph that the per-layer check may compute: large models get one sample."""


@dataclass(frozen=True)
class Verification:
    """Figures of the check.  Empty where there was nothing to compare."""

    outputs: tuple[OutputAccuracy, ...] = ()
    layers: tuple[LayerAccuracy, ...] = ()
    compared_with: str = ""
    samples: int = 0
    notes: tuple[str, ...] = ()


def verify(
    model: Any,
    float_graph: Graph,
    graph: Graph,
    decisions: QuantizationReport,
    run: Runner,
    samples: Sequence[Mapping[str, Array]],
    profile: Profile,
) -> Verification:
    """Outputs of ``run`` against onnxruntime running ``model``; layers of ``graph`` against
    ``float_graph``, by the interpreter; ranges against the ``profile`` they come from.
    """
    if not samples:
        return unverified(decisions, "not checked: a profile holds no samples to check with")
    expected, name, note = reference_runner(model, float_graph, samples)
    outputs = output_accuracy(graph, run, expected, samples)
    few = samples[: max(1, LAYER_ELEMENTS // sum(node.type.size for node in float_graph.nodes))]
    layers = layer_accuracy(float_graph, graph, decisions, few, profile.histograms)
    return Verification(outputs, layers, name, len(samples), (note,) if note else ())


def unverified(decisions: QuantizationReport, *notes: str) -> Verification:
    """What is known without running anything."""
    layers = tuple(LayerAccuracy(n.name, n.op, n.precision, n.reason) for n in decisions.nodes)
    return Verification(layers=layers, notes=notes)
