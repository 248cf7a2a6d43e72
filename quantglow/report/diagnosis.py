"""Diagnosis: the error of an int8 graph, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quantglow.evaluation.accuracy import (
    ALL_FLOAT_WARNING,
    SUSPECTS,
    WORST,
    LayerAccuracy,
    OutputAccuracy,
    headline,
    layers_table,
    outputs_table,
    with_figure,
    worst,
    worst_tables,
)
from quantglow.evaluation.layer_speed import LayerSpeed, speed_table
from quantglow.evaluation.layers import layer_accuracy, sensitivities
from quantglow.evaluation.outputs import output_accuracy, with_logits
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.profiling import Profile
from quantglow.quantization.quantizer import QuantizationReport
from quantglow.report.page import Figures, PageSource, page_of, without_page
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise
from quantglow.support.display.tables import Table, Tabular
from quantglow.support.progress import step


@dataclass(frozen=True, repr=False)
class Diagnosis(Concise, Tabular):
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

    def opening(self) -> Iterator[str]:
        """The accuracy of int8, and the worst layers."""
        yield self._verdict
        if found := self.worst(SUSPECTS):
            yield f"Look at these layers: {', '.join(map(with_figure, found))}."

    def worst(self, count: int = WORST) -> tuple[LayerAccuracy, ...]:
        """The int8 layers with the largest effect on the outputs, worst first."""
        return worst(self.layers, count)

    def tables(self) -> Iterator[Table]:
        """Tables: outputs, the worst layers in detail, all layers, the codes of each, a
        glossary.
        """
        title = f"Outputs of the int8 graph against the float graph, {self.samples} sample(s)"
        yield outputs_table(title, self.outputs)
        if found := self.worst(self.shown):
            yield from worst_tables(found)
        yield layers_table(self.layers)
        if self.speeds:
            yield speed_table(self.speeds)
        yield Table("What the figures mean", ("figure", "meaning"), _MEANINGS)

    def to_json(self) -> dict[str, Any]:
        """All figures in types that ``json`` writes."""
        return without_page(self)

    def to_html(self) -> str:
        """The page that explains the model: graph, advice, tables, histograms, timeline.

        It needs no other file, and holds none of the samples.
        """
        measured = (("samples", str(self.samples)),)
        figures = Figures(
            self.layers, self.outputs, self.speeds, self._verdict, self.notes, measured
        )
        return page_of(self.graph, self.source, figures)

    @property
    def _verdict(self) -> str:
        if all(layer.precision == "float" for layer in self.layers):
            return ALL_FLOAT_WARNING
        return headline(self.outputs, self.samples, "", None, False)


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


_MEANINGS = (
    ("alone dB", "SQNR of the worst output (before Softmax) by this layer's error alone; low: bad"),
    ("local dB", "SQNR of the layer's integer form on exact operands"),
    ("accumulated dB", "SQNR of the layer's value with the errors of all layers before it"),
    ("limits", "share of the values on the lowest or highest code (0 does not count)"),
    ("codes", "codes that occurred, of those there are"),
    ("range seen", "share of the range between the smallest and the largest profiled value"),
    ("99.9 %", "share of the range that 99.9 % of the profiled values need; small: outliers"),
    ("codes taken", "histogram over the codes, lowest on the left"),
)
