"""Diagnosis: the error of an int8 graph, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from quantglow.concise import Concise
from quantglow.graph.graph import Graph
from quantglow.interpreter import interpret
from quantglow.profiling import Profile
from quantglow.quantization import QuantizationReport
from quantglow.report.accuracy import (
    WORST,
    LayerAccuracy,
    OutputAccuracy,
    layers_table,
    outputs_table,
    plain,
    worst,
    worst_tables,
)
from quantglow.report.layers import layer_accuracy
from quantglow.report.outputs import output_accuracy
from quantglow.report.sensitivity import sensitivities
from quantglow.report.tables import Table, Tabular
from quantglow.types import Array


@dataclass(frozen=True, repr=False)
class Diagnosis(Concise, Tabular):
    """``print`` it, show it in a notebook, or take ``to_json()``; the worst ``shown`` layers are
    detailed.
    """

    outputs: tuple[OutputAccuracy, ...]
    layers: tuple[LayerAccuracy, ...]
    samples: int
    shown: int = WORST
    notes: tuple[str, ...] = ()

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
        yield Table("What the figures mean", ("figure", "meaning"), _MEANINGS)

    def to_json(self) -> dict[str, Any]:
        """All figures in types that ``json`` writes."""
        return dict(plain(asdict(self)))

    def html_page(self) -> str:
        """A page of HTML that needs no other file."""
        return _PAGE.format(body=self._repr_html_())


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
    layers = layer_accuracy(float_graph, int8_graph, decisions, samples, profile.histograms)
    if sensitivity:
        names = [n.name for n in decisions.nodes if n.precision != "float"]
        alone = sensitivities(float_graph, int8_graph, names, samples)
        layers = tuple(replace(n, sensitivity_db=alone.get(n.name)) for n in layers)
    exact = [interpret(float_graph, feeds) for feeds in samples]
    rounded = [interpret(int8_graph, feeds) for feeds in samples]
    outputs = output_accuracy(int8_graph, rounded, exact)
    return Diagnosis(outputs, layers, len(samples), shown)


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

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>quantglow diagnosis</title>
<style>
body {{ font: 14px sans-serif; margin: 2em }}
table {{ border-collapse: collapse; margin-bottom: 2em }}
caption {{ font-weight: bold; text-align: left; padding: 4px 0 }}
th, td {{ padding: 2px 8px; border-bottom: 1px solid #ddd }}
</style>
{body}
</html>
"""
