"""Signal to noise of every layer, sensitivity of the outputs to it, and the check of a whole model.

The noise of a layer is measured in the whole int8 graph, and of the layer by itself.  Its
sensitivity is the error that it alone causes in the outputs.  ``verify`` checks a compiled model
against the float model, on samples of the calibration data.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from quantglow.evaluation.accuracy import LayerAccuracy, OutputAccuracy, RightAnswers
from quantglow.evaluation.metrics import CodeCounter, ErrorSums
from quantglow.evaluation.outputs import (
    Feeds,
    Reference,
    Runner,
    numeric_outputs,
    output_accuracy,
    shape_notes,
    with_logits,
)
from quantglow.interpreter import (
    Listener,
    RecordedFeeds,
    compute_value,
    interpret,
    results_in,
)
from quantglow.interpreter.executor import Execution
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.arithmetic import dequantize, quantize
from quantglow.ir.ops.work import count_evaluated_macs
from quantglow.ir.types import TensorType
from quantglow.profiling import Histogram, Profile
from quantglow.quantization.quantizer import QuantizationReport
from quantglow.quantization.search.fake_quantization import logit_outputs
from quantglow.support.arrays import Array
from quantglow.support.processes.interrupts import NEVER, Deadline, end, is_interrupted

Sample = TypeVar("Sample", bound=Mapping[str, Array])

MAX_SAMPLES = 8
"""Number of calibration samples that are kept for the check if none are held out, and of samples
for the check of each layer in any case."""

WORK = 10**11
"""Maximum number of multiply-accumulates of a check with more than ``MAX_SAMPLES`` samples."""

NO_OUTPUT_OF_NUMBERS = "the outputs were not compared: none is a tensor of numbers"

LAYER_ELEMENTS = 2_000_000
"""Maximum number of values of the float graph in the per-layer check: large models get one
sample."""

Counter = Callable[[Sequence[Sequence[Array]], Sequence[Sequence[Array]]], RightAnswers | None]
"""Right answers of the float and of the int8 model for the outputs of all samples,
[samples][outputs]."""


def no_labels(expected: object, results: object) -> None:
    """None: the right answers are not known."""


@dataclass(frozen=True)
class Verification:
    """Figures of the check, empty if there was nothing to compare."""

    outputs: tuple[OutputAccuracy, ...] = ()
    layers: tuple[LayerAccuracy, ...] = ()
    compared_with: str = ""
    samples: int = 0
    notes: tuple[str, ...] = ()
    right: RightAnswers | None = None


def verify(
    reference: Reference,
    float_graph: Graph,
    graph: Graph,
    decisions: QuantizationReport,
    run: Runner,
    samples: Sequence[Mapping[str, Array]],
    of_case: Sequence[Mapping[str, Array]],
    profile: Profile,
    right: Counter = no_labels,
) -> Verification:
    """Check of the outputs of ``run`` against the ``reference`` on ``samples``, of the layers of
    ``graph`` against ``float_graph`` by the interpreter on those ``of_case`` of the graphs, and of
    ranges against their ``profile``.

    A check that fails becomes a note: the model does not depend on it.
    """
    if not samples:
        return skip_verification(decisions, "not checked: a profile holds no samples to check with")

    def compared() -> Verification:
        expected = reference()
        results = list(map(run, samples))
        outputs = output_accuracy(graph, results, expected.outputs)
        shares = right(expected.outputs, results)
        names = numeric_outputs(graph)
        notes = (*expected.notes, *shape_notes(names, results, expected.outputs))
        notes = notes if names else (*notes, NO_OUTPUT_OF_NUMBERS)
        return Verification(outputs, (), expected.name, len(samples), notes, shares)

    def by_layer() -> Verification:
        affordable = LAYER_ELEMENTS // int(sum(node.type.size for node in float_graph.nodes))
        few = of_case[: min(max(1, affordable), MAX_SAMPLES)]
        accuracies = layer_accuracy(
            float_graph, graph, decisions, until_interrupted(few), profile.histograms
        )
        return Verification(layers=accuracies)

    outputs = attempt(compared, Verification(), "the outputs were not compared")
    layers = attempt(by_layer, skip_verification(decisions), "the layers were not compared")
    figures = with_logits(outputs.outputs, float_graph, layers.layers)
    notes = (*outputs.notes, *layers.notes)
    return replace(outputs, outputs=figures, layers=layers.layers, notes=notes)


def affordable(samples: Sequence[Sample], graph: Graph) -> Sequence[Sample]:
    """The samples that the check has time for."""
    work = sum(map(count_evaluated_macs, graph.compute_nodes()))
    return samples[: max(MAX_SAMPLES, WORK // max(int(work), 1))]


def until_interrupted(samples: Iterable[Sample]) -> Iterator[Sample]:
    """The samples until Ctrl-C, at least one."""
    for index, feeds in enumerate(samples):
        if index and is_interrupted():
            end("the check", f"Ctrl-C ended the check early: after {index} sample(s)")
            return
        yield feeds


def attempt(
    check: Callable[[], Verification], otherwise: Verification, failure: str
) -> Verification:
    """The result of a check; ``otherwise`` with a note if it raises."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - no check costs the model that it checks
        note = f"{failure}: {type(error).__name__}: {error}"
        return replace(otherwise, notes=(*otherwise.notes, note))


def skip_verification(decisions: QuantizationReport, *notes: str) -> Verification:
    """The decisions alone, without a run."""
    layers = tuple(map(LayerAccuracy.of, decisions.nodes))
    return Verification(layers=layers, notes=notes)


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
    local: dict[str, ErrorSums] = {}
    accumulated: dict[str, ErrorSums] = {}
    counter = CodeCounter()
    for feeds in samples:
        exact = values_by_name(float_graph, feeds)
        _add(local, local_sums(int8_graph, exact))
        _add(accumulated, accumulate_errors(int8_graph, feeds, exact, counter))
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


def values_by_name(graph: Graph, feeds: Feeds) -> RecordedFeeds:
    """Every value of a run, with the results that the feeds bring."""
    values = RecordedFeeds({}, results_in(feeds))
    with np.errstate(all="ignore"):
        interpret(graph, feeds, [lambda node, value: values.__setitem__(node.name, value)])
    return values


def accumulate_errors(
    graph: Graph, feeds: Feeds, exact: Mapping[str, Array], *listeners: Listener
) -> dict[str, ErrorSums]:
    """Each value of the int8 graph's own run against the exact value of its name.

    ``listeners`` see the run, too.
    """
    sums: dict[str, ErrorSums] = {}

    def compare(node: Node, value: Array) -> None:
        if _comparable(node, exact):
            sums[node.name] = ErrorSums.of(exact[node.name], real(value, node.type))

    interpret(graph, feeds, [compare, *listeners])
    return sums


def local_sums(graph: Graph, exact: Mapping[str, Array]) -> dict[str, ErrorSums]:
    """Each node of the int8 graph, on exact operands, against the exact value of its name."""
    return {node.name: ErrorSums.of(exact[node.name], v) for node, v in _local_values(graph, exact)}


def _local_values(graph: Graph, exact: Mapping[str, Array]) -> Iterator[tuple[Node, Array]]:
    """Each node of the int8 graph run on the exact values of its operands, rounded to their types.

    Yields the real numbers of the results.  A helper node that belongs to no float value (a
    Quantize, say) is run on its own operands.
    """
    execution = Execution(graph, (), partial(_local, exact))
    for node, value in execution:
        if node.operands and _comparable(node, exact):
            yield node, real(value.computed, node.type)


class _Local(NamedTuple):
    """The value that a node computes, and the one that its readers get."""

    computed: Array
    read: Array


def _local(exact: Mapping[str, Array], node: Node, operands: Sequence[_Local]) -> _Local:
    value = compute_value(node, [operand.read for operand in operands], exact)
    if not _comparable(node, exact):
        return _Local(value, value)
    return _Local(value, _round_to_type(exact[node.name], node.type))


def _comparable(node: Node, exact: Mapping[str, Array]) -> bool:
    """Whether the float graph computed the value of this node."""
    if isinstance(node, Constant) or node.name not in exact:
        return False
    kind = node.type
    is_real = kind.dtype.is_float or kind.quant is not None
    return is_real and exact[node.name].shape == kind.fixed_shape


def real(value: Array, kind: TensorType) -> Array:
    """The real numbers that a value stands for."""
    return value if kind.quant is None else dequantize(value, kind.params)


def _round_to_type(value: Array, kind: TensorType) -> Array:
    """A float value in the type of a node."""
    return value if kind.quant is None else quantize(value, kind.element)


def _add(totals: dict[str, ErrorSums], more: Mapping[str, ErrorSums]) -> None:
    for name, sums in more.items():
        totals[name] = totals.get(name, ErrorSums()) + sums


def _db(sums: ErrorSums | None) -> float | None:
    return None if sums is None else sums.sqnr_db


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
) -> dict[str, list[ErrorSums]]:
    layers = frozenset(names)
    totals: dict[str, list[ErrorSums]] = {}
    for feeds in samples:
        for name, sums in _of_sample(float_graph, int8_graph, layers, feeds):
            if deadline.is_over:
                return totals
            before = totals.get(name, [ErrorSums()] * len(sums))
            totals[name] = [a + b for a, b in zip(before, sums, strict=True)]
    return totals


def _of_sample(
    float_graph: Graph, int8_graph: Graph, layers: frozenset[str], feeds: Feeds
) -> Iterable[tuple[str, list[ErrorSums]]]:
    exact: dict[Node, Array] = {}
    interpret(float_graph, feeds, [exact.__setitem__])
    by_name = RecordedFeeds({node.name: value for node, value in exact.items()}, results_in(feeds))
    outputs = logit_outputs(float_graph)
    for node, value in _local_values(int8_graph, by_name):
        if node.name in layers:
            layer = float_graph.by_name(node.name)
            ends = consequences(float_graph, exact, layer, value, outputs, results_in(feeds))
            yield node.name, [ErrorSums.of(exact[o], v) for o, v in zip(outputs, ends, strict=True)]


def consequences(
    graph: Graph,
    exact: Mapping[Node, Array],
    changed: Node,
    value: Array,
    ends: Sequence[Node],
    recorded: Container[str] = (),
) -> list[Array]:
    """The values of ``ends`` in a run where ``changed`` has ``value``; ``exact`` are the values of
    the unchanged run.  Results that are ``recorded``, by name, do not change.
    """

    def evaluate(node: Node, operands: Sequence[Array | None]) -> Array | None:
        if node is changed:
            return value
        if node.name in recorded or all(operand is None for operand in operands):
            return None
        pairs = zip(operands, node.operands, strict=True)
        return node.evaluate(*(exact[o] if changed is None else changed for changed, o in pairs))

    values = Execution(graph, ends, evaluate, only=()).run()
    return [
        exact[end] if changed is None else changed
        for changed, end in zip(values, ends, strict=True)
    ]
