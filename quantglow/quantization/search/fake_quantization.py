"""Fake quantization: a float graph run with the roundings of its plan; the noise of its outputs.

Activations are rounded as int8 would, before there is an int8 graph.  Weights are rounded to
nearest, or left alone where accuracy recovery will round them against the data, with far smaller
errors.  The noise of the outputs (``relative_noise``) is the objective of the search;
``comparisons`` has the values by which outputs are compared.

Plans that are tried one after the other mostly differ in one part of the network, so a run resumes
from checkpoints where the next plan differs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, takewhile
from typing import Any, NamedTuple

import numpy as np

from quantglow.interpreter.executor import Execution, ExecutionState, peak_nbytes
from quantglow.interpreter.stacks import Evaluator, Stacks, in_groups
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node, StoredConstant, ancestors
from quantglow.ir.ops import LogSoftmax, Reshape, Sigmoid, Softmax
from quantglow.ir.ops.arithmetic import quantization, round_reals
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.types import ElementType
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.plan.int16 import is_stored
from quantglow.quantization.plan.network_ends import behind_views, choice_scores
from quantglow.quantization.plan.params import quantize_weights
from quantglow.quantization.plan.plan import Plan
from quantglow.quantization.shape_variants import VariantEvaluator
from quantglow.support.arrays import Array
from quantglow.support.processes.interrupts import check_interrupt
from quantglow.support.processes.workers import at_once, each

TINY = 1e-30
MIN_VALUES = 64
"""Minimum number of values of an output that is compared itself, not by its operands."""

STATES = 16
"""Maximum number of states kept of a run, evenly spaced along its nodes."""

MAX_NBYTES = 2**27
"""Maximum size of the states of one plan, over all samples, in bytes."""


def relative_noise(
    plan: Plan,
    samples: Sequence[Feeds],
    exact: Sequence[Sequence[Array]],
    exact_weights: bool,
    checkpoints: Checkpoints | None = None,
) -> float:
    """Energy of the error over energy of the signal, of the worst output, over all samples.

    ``exact``: for each sample the exact values of the ``compared_nodes``.  ``checkpoints``: of an
    earlier plan, from which the runs go on where they can.
    """
    weights = {} if exact_weights else rounded_weights(plan)
    ends = compared_nodes(plan.graph)

    def run(group: tuple[Sequence[Feeds], RunCheckpoints]) -> list[list[Array]]:
        some, checkpoint = group
        running = execution(plan, some, weights, checkpoint.resume(ends))
        for _ in running:
            checkpoint.add(running)
        values = [value.real for value in running.run()]
        return [[value.of(index) for value in values] for index in range(len(some))]

    groups = in_groups(samples, peak_nbytes(plan.graph), at_once())
    started = (checkpoints or Checkpoints()).start(plan, len(groups))
    results = each(run, zip(groups, started, strict=True))
    return noise_to_signal(plan.graph, list(chain.from_iterable(results)), exact)


class Comparison(NamedTuple):
    """A node by which an output is compared, and whether a constant added to all values of a row
    makes no difference there, as before a Softmax.
    """

    node: Node
    any_shift: bool


def logit_outputs(graph: Graph) -> tuple[Node, ...]:
    """The outputs, a probability replaced by its logit: 0 and 1 hide the errors before them; a
    choice by the scores that it is made among.
    """
    return tuple(map(_logits, measured_outputs(graph)))


def measured_outputs(graph: Graph) -> tuple[Node, ...]:
    """The outputs in order, each once; for one of strings or an opaque one, the numbers that it is
    computed from."""
    measured: dict[Node, None] = {}
    for _, output in graph.outputs:
        waiting = [output]
        while waiting:
            node = waiting.pop()
            if node.type.dtype.is_object:
                waiting.extend(reversed(node.operands))
            else:
                measured[node] = None
    return tuple(measured)


def _logits(node: Node) -> Node:
    source = behind_views(node)
    if (scores := choice_scores(source)) is not None:
        return _logits(scores)
    return _logits(source.x) if isinstance(source, Softmax | LogSoftmax | Sigmoid) else node


def compared_nodes(graph: Graph) -> tuple[Node, ...]:
    """The node by which each output is compared, see ``comparisons``."""
    return tuple(comparison.node for comparison in comparisons(graph))


def comparisons(graph: Graph) -> tuple[Comparison, ...]:
    """How each output is compared.

    A probability is compared by its logit: where it is 0 or 1 it hides noise, and the one sample
    that is least sure would decide.  A choice (TopK) is compared by its scores.  A few numbers are
    compared by the features they are computed from, since their noise is mostly chance.
    """
    return tuple(map(_comparison, measured_outputs(graph)))


def _comparison(node: Node) -> Comparison:
    any_shift = False
    while node.operands:
        source = behind_views(node)
        if (scores := choice_scores(source)) is not None:
            node, any_shift = scores, False
        elif isinstance(source, Softmax | LogSoftmax | Sigmoid):
            node, any_shift = source.x, not isinstance(source, Sigmoid)
        elif int(node.type.size) < MIN_VALUES and isinstance(node, Contraction | Reshape):
            node, any_shift = node.operands[0], False
        else:
            break
    return Comparison(node, any_shift)


def noise_to_signal(
    graph: Graph, measured: Sequence[Sequence[Array]], expected: Sequence[Sequence[Array]]
) -> float:
    """Noise over signal of the worst output, over all samples.

    ``measured`` and ``expected`` [samples][outputs] are values of the ``compared_nodes``.
    """
    any_shift = [comparison.any_shift for comparison in comparisons(graph)]
    noise, signal = np.zeros(len(any_shift)), np.full(len(any_shift), TINY)
    for results, right in zip(measured, expected, strict=True):
        for index, (got, exact) in enumerate(zip(results, right, strict=True)):
            noise[index] += energy(output_error(got, exact), any_shift[index])
            signal[index] += power(exact, any_shift[index])
    return float((noise / signal).max(initial=0.0))


def output_error(result: Array, exact: Array) -> Array:
    """``result - exact`` in float64; NaN where both have the same infinity, or none is a number,
    and inf where one has.
    """
    with np.errstate(invalid="ignore"):
        error = np.asarray(np.subtract(result, exact, dtype=np.float64))
    odd = ~np.isfinite(error)
    if not odd.any():
        return error
    same = (result == exact) | (np.isnan(result) & np.isnan(exact))
    return np.where(odd, np.where(same, np.nan, np.inf), error)


def power(exact: Array, any_shift: bool) -> float:
    """The ``energy`` of finite values."""
    values = exact.astype(np.float64)
    return energy(np.where(np.isfinite(values), values, np.nan), any_shift)


def energy(values: Array, any_shift: bool) -> float:
    """Sum of squares, with ``any_shift`` of the distances from the mean of each row.  NaN are left
    out.
    """
    is_number = ~np.isnan(values)
    if not is_number.all():
        values = np.where(is_number, values, 0.0)
    apart = values
    if any_shift and values.size and not np.isinf(values).any():
        counts = np.maximum(is_number.sum(axis=-1, keepdims=True), 1)
        apart = np.where(is_number, values - values.sum(axis=-1, keepdims=True) / counts, 0.0)
    return float(np.square(apart).sum())


class FakeQuantized(NamedTuple):
    """A value of a fake-quantized run.  A float operator whose result is stored in integers gives
    two: its float readers see the real one.  Elsewhere both are the same array.
    """

    real: Stacks
    stored: Stacks

    @property
    def nbytes(self) -> int:
        return self.real.nbytes + (0 if self.stored is self.real else self.stored.nbytes)


def execution(
    plan: Plan,
    samples: Sequence[Feeds],
    weights: Mapping[Node, Array],
    start: ExecutionState[FakeQuantized] | None = None,
) -> Execution[FakeQuantized]:
    """A run for some samples up to the ``compared_nodes``; ``weights`` stand in for Constants.

    Running it raises ``Interrupted`` after Ctrl-C.
    """
    evaluator = VariantEvaluator(plan.graph, samples, weights)
    evaluate = partial(_evaluate, plan, evaluator)
    return Execution(plan.graph, compared_nodes(plan.graph), evaluate, start, only=())


def _evaluate(
    plan: Plan, evaluator: Evaluator, node: Node, operands: Sequence[FakeQuantized]
) -> FakeQuantized:
    check_interrupt()
    is_int8 = plan.is_int8(node)
    reads = [operand.stored if is_int8 else operand.real for operand in operands]
    value = evaluator.compute(node, reads)
    element = plan.element_types.get(node) if is_stored(plan, node) else None
    if isinstance(node, Constant) or element is None:
        return FakeQuantized(value, value)
    stored = value.mapped(lambda array: round_reals(array, element))
    return FakeQuantized(stored if is_int8 else value, stored)


def rounded_weights(plan: Plan) -> dict[Node, Array]:
    """The weights of int8 layers, rounded to nearest."""
    reals: dict[Node, Array] = {}
    for node in plan.graph.nodes:
        if isinstance(node, Contraction) and plan.is_int8(node):
            w: Any = node.w
            if isinstance(w, StoredConstant):
                continue
            quantized = quantize_weights(w.value, None, quantization(plan.element_types[node.x]))
            reals[w] = quantized.weights.astype(np.float32) * quantized.scales
    return reals


@dataclass
class RunCheckpoints:
    """States of the run of a plan on one sample, of ``room_nbytes`` together at most; ``before``
    has those of another plan.
    """

    plan: Plan
    room_nbytes: int
    before: RunCheckpoints | None = None
    states: list[ExecutionState[FakeQuantized]] = field(default_factory=list)

    def add(self, execution: Execution[FakeQuantized]) -> None:
        """Keep the state of a run, if its turn has come and there is room."""
        last = self.states[-1].position if self.states else 0
        if execution.position - last < max(len(self.plan.graph.nodes) // STATES, 1):
            return
        state = execution.state
        if state_nbytes(state) <= self.room_nbytes:
            self._keep(state)

    def resume(self, ends: Collection[Node]) -> ExecutionState[FakeQuantized] | None:
        """The last state that this plan has in common with the one before; None: there is none.

        The states up to it become those of this run.  ``ends``: values that are read when all
        nodes have run.
        """
        before, self.before = self.before, None
        if before is None:
            return None
        same = _common_prefix(self.plan, before.plan)
        for state in takewhile(lambda state: state.position <= same, before.states):
            if _read_from(self.plan.graph, state.position, ends) <= state.values.keys():
                self._keep(state)
        return self.states[-1] if self.states else None

    def _keep(self, state: ExecutionState[FakeQuantized]) -> None:
        self.states.append(state)
        self.room_nbytes -= state_nbytes(state)


@dataclass
class Checkpoints:
    """Checkpoints, one for each sample, of the best plan so far (``best``) and of the latest."""

    best: list[RunCheckpoints] = field(default_factory=list)
    latest: list[RunCheckpoints] = field(default_factory=list)

    def start(self, plan: Plan, samples: int) -> list[RunCheckpoints]:
        """Checkpoints for the runs of a plan, which resume from those kept."""
        before: Sequence[RunCheckpoints | None] = self.best or [None] * samples
        room = MAX_NBYTES // max(samples, 1)
        self.latest = [RunCheckpoints(plan, room, run) for run in before]
        return self.latest

    def keep(self) -> None:
        """The latest plan is the best one: plans to come resume from its runs."""
        self.best = self.latest


def state_nbytes(state: ExecutionState[FakeQuantized]) -> int:
    """Size of the values of a state, in bytes."""
    return sum(value.nbytes for value in state.values.values())


def _common_prefix(one: Plan, other: Plan) -> int:
    """Number of nodes at the start that are the same, and rounded alike."""
    pairs = zip(one.graph.nodes, other.graph.nodes, strict=False)
    alike = (a is b and _decision(one, a) == _decision(other, b) for a, b in pairs)
    return sum(1 for _ in takewhile(bool, alike))


def _decision(plan: Plan, node: Node) -> tuple[bool, ElementType | None]:
    """All that the value of a node depends on, beside its operands."""
    return plan.is_int8(node), plan.element_types.get(node) if is_stored(plan, node) else None


def _read_from(graph: Graph, position: int, ends: Collection[Node]) -> set[Node]:
    """The values computed before a position that are read from there on."""
    needed = ancestors(ends)
    later = (node for node in graph.nodes[position:] if node in needed)
    read = {operand for node in later for operand in node.operands}
    before = (node for node in graph.nodes[:position] if not isinstance(node, Constant))
    return {node for node in before if node in read or node in ends}
