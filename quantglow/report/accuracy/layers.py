"""Signal to noise of every layer: in the whole int8 graph, and of each layer by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.interpreter import Listener, interpret, value_of
from quantglow.interpreter.executor import Execution
from quantglow.ops.arithmetic import dequantize, quantize
from quantglow.profiling import Histogram
from quantglow.quantization.report import QuantizationReport
from quantglow.report.accuracy.accuracy import LayerAccuracy
from quantglow.report.accuracy.codes import CodeCounter
from quantglow.report.accuracy.metrics import Sums
from quantglow.report.accuracy.outputs import Feeds
from quantglow.types import TensorType


def layer_accuracy(
    float_graph: Graph,
    int8_graph: Graph,
    decisions: QuantizationReport,
    samples: Iterable[Feeds],
    histograms: Mapping[str, Histogram],
) -> tuple[LayerAccuracy, ...]:
    """An entry for each operator of the float graph, measured on ``samples`` if it can be.

    ``histograms`` of the profile give the share of each range that is used.
    """
    local: dict[str, Sums] = {}
    accumulated: dict[str, Sums] = {}
    counter = CodeCounter()
    for feeds in samples:
        exact = values_by_name(float_graph, feeds)
        _add(local, local_sums(int8_graph, exact))
        _add(accumulated, accumulated_sums(int8_graph, feeds, exact, counter))
    uses = counter.uses(histograms)
    layers = map(LayerAccuracy.of, decisions.nodes)
    return tuple(
        replace(
            layer,
            sqnr_local_db=_db(local.get(layer.name)),
            sqnr_accumulated_db=_db(accumulated.get(layer.name)),
            codes=uses.get(layer.name),
        )
        for layer in layers
    )


def values_by_name(graph: Graph, feeds: Feeds) -> dict[str, Array]:
    """Every value of a run."""
    values: dict[str, Array] = {}
    with np.errstate(all="ignore"):
        interpret(graph, feeds, [lambda node, value: values.__setitem__(node.name, value)])
    return values


def accumulated_sums(
    graph: Graph, feeds: Feeds, exact: Mapping[str, Array], *listeners: Listener
) -> dict[str, Sums]:
    """Each value of the int8 graph's own run against the exact value of its name.

    ``listeners`` see the run, too.
    """
    sums: dict[str, Sums] = {}

    def compare(node: Node, value: Array) -> None:
        if comparable(node, exact):
            sums[node.name] = Sums.of(exact[node.name], real(value, node.type))

    interpret(graph, feeds, [compare, *listeners])
    return sums


def local_sums(graph: Graph, exact: Mapping[str, Array]) -> dict[str, Sums]:
    """Each node of the int8 graph, on exact operands, against the exact value of its name."""
    return {node.name: Sums.of(exact[node.name], v) for node, v in local_values(graph, exact)}


def local_values(graph: Graph, exact: Mapping[str, Array]) -> Iterator[tuple[Node, Array]]:
    """Each node of the int8 graph run on the exact values of its operands, rounded to their types.

    Yields the real numbers of the results.  A helper node that belongs to no float value (a
    Quantize, say) is run on its own operands.
    """
    execution = Execution(graph, (), partial(_local, exact))
    for node, value in execution:
        if node.operands and comparable(node, exact):
            yield node, real(value.computed, node.type)


class _Local(NamedTuple):
    """The value that a node computes, and the one that its readers get."""

    computed: Array
    read: Array


def _local(exact: Mapping[str, Array], node: Node, operands: Sequence[_Local]) -> _Local:
    value = value_of(node, [operand.read for operand in operands], exact)
    if not comparable(node, exact):
        return _Local(value, value)
    return _Local(value, rounded(exact[node.name], node.type))


def comparable(node: Node, exact: Mapping[str, Array]) -> bool:
    """Whether the float graph computed the value of this node."""
    if isinstance(node, Constant) or node.name not in exact:
        return False
    kind = node.type
    return exact[node.name].shape == kind.shape and (kind.dtype.is_float or kind.quant is not None)


def real(value: Array, kind: TensorType) -> Array:
    """The real numbers that a value stands for."""
    return value if kind.quant is None else dequantize(value, kind.params)


def rounded(value: Array, kind: TensorType) -> Array:
    """A float value in the type of a node."""
    return value if kind.quant is None else quantize(value, kind.element)


def _add(totals: dict[str, Sums], more: Mapping[str, Sums]) -> None:
    for name, sums in more.items():
        totals[name] = totals.get(name, Sums()) + sums


def _db(sums: Sums | None) -> float | None:
    return None if sums is None else sums.sqnr_db
