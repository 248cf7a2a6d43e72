"""Sensitivity: the error that a single layer causes in the outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.interpreter import interpret
from quantglow.interpreter.executor import Execution
from quantglow.processes.deadline import NEVER, Deadline
from quantglow.quantization.search.output_noise import logit_outputs
from quantglow.report.accuracy.layers import local_values
from quantglow.report.accuracy.metrics import Sums
from quantglow.report.accuracy.outputs import Feeds


def sensitivities(
    float_graph: Graph, int8_graph: Graph, names: Iterable[str], samples: Sequence[Feeds]
) -> dict[str, float]:
    """SQNR in dB of the worst output for each named layer, all other layers being exact.

    For probabilities it is the SQNR of their logits.  The layer has the error of its integer form
    on exact operands.  Layers whose value no longer exists by itself are left out.
    """
    totals = _totals(float_graph, int8_graph, names, samples)
    return {name: min(s.sqnr_db for s in sums) for name, sums in totals.items()}


def noise_of_each(
    float_graph: Graph,
    int8_graph: Graph,
    names: Iterable[str],
    samples: Sequence[Feeds],
    deadline: Deadline = NEVER,
) -> dict[str, float]:
    """Noise over signal, summed over the outputs, for each named layer.

    It is as ``sensitivities``, for the layers that are measured before the deadline.
    """
    totals = _totals(float_graph, int8_graph, names, samples, deadline)
    return {
        name: sum(s.noise / s.signal for s in sums if s.signal) for name, sums in totals.items()
    }


def _totals(
    float_graph: Graph,
    int8_graph: Graph,
    names: Iterable[str],
    samples: Sequence[Feeds],
    deadline: Deadline = NEVER,
) -> dict[str, list[Sums]]:
    wanted = frozenset(names)
    totals: dict[str, list[Sums]] = {}
    for feeds in samples:
        for name, sums in _of_sample(float_graph, int8_graph, wanted, feeds):
            if deadline.is_over:
                return totals
            before = totals.get(name, [Sums()] * len(sums))
            totals[name] = [a + b for a, b in zip(before, sums, strict=True)]
    return totals


def _of_sample(
    float_graph: Graph, int8_graph: Graph, wanted: frozenset[str], feeds: Feeds
) -> Iterable[tuple[str, list[Sums]]]:
    exact: dict[Node, Array] = {}
    interpret(float_graph, feeds, [exact.__setitem__])
    by_name = {node.name: value for node, value in exact.items()}
    outputs = logit_outputs(float_graph)
    for node, value in local_values(int8_graph, by_name):
        if node.name in wanted:
            layer = float_graph.by_name(node.name)
            found = consequences(float_graph, exact, layer, value, outputs)
            yield node.name, [Sums.of(exact[o], v) for o, v in zip(outputs, found, strict=True)]


def consequences(
    graph: Graph,
    exact: Mapping[Node, Array],
    changed: Node,
    value: Array,
    ends: Sequence[Node],
) -> list[Array]:
    """The values of ``ends`` in a run where ``changed`` has ``value``; ``exact`` are the values of
    the unchanged run.
    """

    def evaluate(node: Node, operands: Sequence[Array | None]) -> Array | None:
        if node is changed:
            return value
        if all(operand is None for operand in operands):
            return None
        pairs = zip(operands, node.operands, strict=True)
        return node.evaluate(*(exact[o] if given is None else given for given, o in pairs))

    found = Execution(graph, ends, evaluate, only=()).run()
    return [exact[end] if given is None else given for given, end in zip(found, ends, strict=True)]
