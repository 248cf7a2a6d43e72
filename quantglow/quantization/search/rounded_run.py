"""A float graph run with the roundings that its plan asks for: a judge of plans, before any weight
is rounded.

Activations are rounded as int8 would.  Weights are rounded to nearest, or left alone where
accuracy recovery will round them against the data, with far smaller errors.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.interrupts import check_interrupt
from quantglow.ops import LogSoftmax, Reshape, Sigmoid, Softmax, Transpose
from quantglow.ops.arithmetic import quant_of, rounded_reals
from quantglow.ops.contraction import Contraction
from quantglow.profiling.data import Feeds
from quantglow.quantization.plan.int16 import is_stored
from quantglow.quantization.plan.params import quantize_weights
from quantglow.quantization.plan.plan import Plan
from quantglow.quantization.search.checkpoints import Trace, Traces
from quantglow.quantization.shape_variants import counterpart
from quantglow.types import Array
from quantglow.workers import each

TINY = 1e-30
FEWEST_VALUES = 64
"""In an output that is judged by itself."""
NOTHING: Mapping[Node, Array] = MappingProxyType({})


def told_apart(graph: Graph) -> tuple[Node, ...]:
    """The outputs, of a probability the logit: 0 and 1 look alike whatever happens before them."""
    return tuple(_logits(node) for _, node in graph.outputs)


def _logits(node: Node) -> Node:
    source = _behind_views(node)
    return _logits(source.x) if isinstance(source, Softmax | LogSoftmax | Sigmoid) else node


def judged(graph: Graph) -> tuple[Node, ...]:
    """What the graph's outputs are judged by: of a probability the logit, which tells noise where
    the probability is 0 or 1 and the one sample that is least sure would decide; of a few numbers
    the features they are made of, since the noise of a few numbers is mostly chance.
    """
    return tuple(node for node, _ in judges(graph))


def judges(graph: Graph) -> tuple[tuple[Node, bool], ...]:
    """``judged``, and of each whether what its rows have in common is ignored, as by a Softmax."""
    return tuple(_judged(node) for _, node in graph.outputs)


def _judged(node: Node) -> tuple[Node, bool]:
    any_shift = False
    while node.operands:
        source = _behind_views(node)
        if isinstance(source, Softmax | LogSoftmax | Sigmoid):
            node, any_shift = source.x, not isinstance(source, Sigmoid)
        elif node.type.size < FEWEST_VALUES and isinstance(node, Contraction | Reshape):
            node, any_shift = node.operands[0], False
        else:
            break
    return node, any_shift


def _behind_views(node: Node) -> Node:
    while isinstance(node, Reshape | Transpose):
        node = node.x
    return node


def relative_noise(
    plan: Plan,
    samples: Sequence[Feeds],
    wanted: Sequence[Sequence[Array]],
    exact_weights: bool,
    traces: Traces | None = None,
) -> float:
    """Energy of the error over energy of the signal, of the worst output, over all samples.

    ``traces``: of a plan before, from which the runs go on where they can.
    """
    weights = {} if exact_weights else _rounded_weights(plan)
    started = (traces or Traces()).of(plan, len(samples))
    pairs = zip(samples, started, strict=True)
    found = each(lambda pair: run(plan.graph, pair[0], plan, weights, pair[1]), pairs)
    return noise_to_signal(plan.graph, found, wanted)


def noise_to_signal(
    graph: Graph, found: Sequence[Sequence[Array]], wanted: Sequence[Sequence[Array]]
) -> float:
    """Of the worst output, over all samples; ``found`` and ``wanted`` are judged values."""
    noise, signal = np.zeros(len(graph.outputs)), np.full(len(graph.outputs), TINY)
    any_shift = [shift for _, shift in judges(graph)]
    for results, right in zip(found, wanted, strict=True):
        for index, (got, exact) in enumerate(zip(results, right, strict=True)):
            noise[index] += energy(error_of(got, exact), any_shift[index])
            signal[index] += power(exact, any_shift[index])
    return float((noise / signal).max(initial=0.0))


def error_of(found: Array, exact: Array) -> Array:
    """``found - exact`` in float64; NaN where both have the same infinity, or none is a number, and
    inf where one has.
    """
    with np.errstate(invalid="ignore"):
        error = np.asarray(np.subtract(found, exact, dtype=np.float64))
    odd = ~np.isfinite(error)
    if not odd.any():
        return error
    same = (found == exact) | (np.isnan(found) & np.isnan(exact))
    return np.where(odd, np.where(same, np.nan, np.inf), error)


def power(exact: Array, any_shift: bool) -> float:
    """The ``energy`` of finite values."""
    values = exact.astype(np.float64)
    return energy(np.where(np.isfinite(values), values, np.nan), any_shift)


def energy(values: Array, any_shift: bool) -> float:
    """Sum of squares; of rows with ``any_shift`` around their mean.  NaN are left out."""
    known = ~np.isnan(values)
    if not known.all():
        values = np.where(known, values, 0.0)
    apart = values
    if any_shift and values.size and not np.isinf(values).any():
        counts = np.maximum(known.sum(axis=-1, keepdims=True), 1)
        apart = np.where(known, values - values.sum(axis=-1, keepdims=True) / counts, 0.0)
    return float(np.square(apart).sum())


def run(
    graph: Graph,
    feeds: Feeds,
    plan: Plan | None = None,
    weights: Mapping[Node, Array] = NOTHING,
    trace: Trace | None = None,
) -> list[Array]:
    """The judged values for one sample; ``weights`` stand in for Constants.

    ``trace``: says where to begin, and keeps states of the run.  Raises ``Interrupted`` after
    Ctrl-C.
    """
    values: dict[Node, Array] = dict(weights)
    copies: dict[Node, Array] = {}
    waiting = Counter(graph.use_counts)
    ends = judged(graph)
    waiting.update(ends)
    begin = 0
    if trace is not None and (state := trace.resumed(ends)) is not None:
        begin = state.position
        values.update(state.values)
        copies.update(state.copies)
    for position, node in enumerate(graph.nodes):
        check_interrupt()
        if isinstance(node, Constant):
            constant: Any = counterpart(node, feeds)
            values.setdefault(node, constant.value)
            continue
        if position >= begin:
            if trace is not None:
                trace.add(position, values, copies)
            seen = ChainMap(copies, values) if plan and plan.is_int8(node) else values
            operands = [seen[operand] for operand in node.operands]
            own = counterpart(node, feeds)
            value = own.evaluate(*operands) if operands else np.asarray(feeds[node.name])
            values[node] = value
            if plan is not None:
                # Float readers see what a float operator gives as it is.
                (values if plan.is_int8(node) else copies)[node] = _rounded(plan, node, value)
        for operand in node.operands:
            waiting[operand] -= 1
            if not waiting[operand]:
                values.pop(operand, None)
                copies.pop(operand, None)
    return [values[node] for node in ends]


def _rounded(plan: Plan, node: Node, value: Array) -> Array:
    element = plan.elements.get(node) if is_stored(plan, node) else None
    if element is None:
        return value
    return rounded_reals(value, element)


def _rounded_weights(plan: Plan) -> dict[Node, Array]:
    found: dict[Node, Array] = {}
    for node in plan.graph.nodes:
        if isinstance(node, Contraction) and plan.is_int8(node):
            w: Any = node.w
            made = quantize_weights(w.value, None, quant_of(plan.elements[node.x]))
            found[w] = made.weights.astype(np.float32) * made.scales
    return found
