"""Diagnosis: the error of an int8 graph, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quantglow.evaluation.accuracy import WORST, LayerAccuracy, OutputAccuracy, worst
from quantglow.evaluation.layer_speed import LayerSpeed
from quantglow.evaluation.layers import layer_accuracy, sensitivities
from quantglow.evaluation.outputs import output_accuracy, with_logits
from quantglow.evaluation.report import PageSource, without_page
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.profiling import Profile
from quantglow.quantization.quantizer import QuantizationReport
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise
from quantglow.support.progress import step
from quantglow.support.views import HasView, show


@dataclass(frozen=True, repr=False)
class Diagnosis(Concise, HasView):
    """``print`` it, show it in a notebook, take ``to_html()`` or ``to_json()``; the worst ``shown``
    layers are detailed.

    ``speeds`` are measured times of layers, if they were asked for; ``graph`` and ``source`` are
    shown on the page.
    """

    outputs: tuple[OutputAccuracy, ...]
    layers: tuple[LayerAccuracy, ...]
    samples: int
    shown: int = WORST
    notes: tuple[str, ...] = ()
    speeds: tuple[LayerSpeed, ...] = ()
    graph: Graph | None = field(default=None, repr=False, compare=False)
    source: PageSource | None = field(default=None, repr=False, compare=False)

    def worst(self, count: int = WORST) -> tuple[LayerAccuracy, ...]:
        """The int8 layers with the largest effect on the outputs, worst first."""
        return worst(self.layers, count)

    def tables(self) -> Iterator[Any]:
        """Tables: outputs, the worst layers in detail, all layers, the codes of each, a
        glossary.
        """
        tables: Iterator[Any] = show(self).tables()
        return tables

    def to_json(self) -> dict[str, Any]:
        """All figures in types that ``json`` writes."""
        return without_page(self)

    def to_html(self) -> str:
        """The page that explains the model: graph, advice, tables, histograms, timeline.

        It needs no other file, and holds none of the samples.
        """
        return str(show(self).page())


def diagnose(
    float_graph: Graph,
    int8_graph: Graph,
    decisions: QuantizationReport,
    samples: Sequence[Mapping[str, Array]],
    profile: Profile,
    *,
    sensitivity: bool = True,
    shown: int = WORST,
) -> Diagnosis:
    """Every figure of every layer, by the interpreter, on ``samples``.

    ``sensitivity`` also runs the operators behind each layer once for each sample.
    """
    with step("errors of layers are measured"):
        layers = layer_accuracy(float_graph, int8_graph, decisions, samples, profile.histograms)
    if sensitivity:
        names = [n.name for n in decisions.nodes if n.precision != "float"]
        with step(f"sensitivity of {len(names)} layers is measured"):
            alone = sensitivities(float_graph, int8_graph, names, samples)
        layers = tuple(replace(n, sensitivity_db=alone.get(n.name)) for n in layers)
    exact = [interpret(float_graph, feeds) for feeds in samples]
    rounded = [interpret(int8_graph, feeds) for feeds in samples]
    outputs = with_logits(output_accuracy(int8_graph, rounded, exact), float_graph, layers)
    return Diagnosis(outputs, layers, len(samples), shown, graph=int8_graph)
