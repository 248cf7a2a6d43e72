"""Sensitivity analysis: the error that rounding one activation causes in the outputs, and the
activations to keep in higher precision within a time budget.

Each value alone is rounded in the float network, on a few calibration samples.  Its sensitivity is
the error by which outputs are compared (see ``fake_quantization.comparisons``), over the signal.
The sensitivities of different values add up, nearly: so the choice is a knapsack problem, as the
choice of bit widths is an integer program in HAWQ-V3 (Yao et al., 2021, arXiv:2011.10680).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from quantglow.interpreter.executor import Execution
from quantglow.interpreter.stacks import Evaluator, Stacks, in_groups
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.arithmetic import round_reals
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.work import count_evaluated_macs
from quantglow.ir.types import ElementType
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.plan.int16 import group_members, is_stored
from quantglow.quantization.plan.plan import Plan
from quantglow.quantization.search.fake_quantization import (
    Comparison,
    comparisons,
    energy,
    output_error,
    power,
)
from quantglow.quantization.shape_variants import VariantEvaluator
from quantglow.support.arrays import Array
from quantglow.support.processes.interrupts import NEVER, Deadline
from quantglow.support.processes.workers import each, side_by_side
from quantglow.support.progress import show

MIN_SAMPLES, MAX_SAMPLES = 2, 8
"""Minimum and maximum number of calibration samples on which errors are measured.  Each costs half
a run for each candidate."""

MAX_WORK = 2e11
"""Maximum number of multiply-accumulates of all trials, beyond which only ``MIN_SAMPLES`` are used.
"""

MEAN_ROWS = 16
"""Minimum number of rows of a layer's results, over all samples, from which to estimate its mean
error."""

MIN_ERROR_SHARE = 0.002
"""Candidates with a smaller share of the total error are skipped, however cheap they are."""

BUDGET_PARTS = 2000
"""Number of equal parts of the budget.  Costs are rounded up to whole parts."""


def most_sensitive(
    plan: Plan,
    costs: Mapping[Node, float],
    budget: float,
    samples: Sequence[Feeds],
    corrected: bool = False,
    deadline: Deadline = NEVER,
    progress: bool | str = False,
) -> list[Node]:
    """The groups of values on which ``budget`` is best spent, the most sensitive first.

    ``costs``: group -> the cost of avoiding its rounding.  The other arguments are those of
    ``rounding_sensitivities``.
    """
    costs = {root: cost for root, cost in costs.items() if cost <= budget}
    if not costs:
        return []
    some = _spread_samples(plan, len(costs), samples)
    errors = rounding_sensitivities(plan, list(costs), some, corrected, deadline, progress)
    least = MIN_ERROR_SHARE * sum(errors.values())
    worth = {root: cost for root, cost in costs.items() if errors[root] > least}
    return sorted(knapsack(worth, errors, budget), key=lambda root: -errors[root])


def knapsack(
    costs: Mapping[Node, float], values: Mapping[Node, float], budget: float
) -> list[Node]:
    """The nodes with the largest sum of ``values`` whose costs do not exceed the budget.

    The 0-1 knapsack problem, by dynamic programming over ``BUDGET_PARTS``.
    """
    sums = np.zeros(BUDGET_PARTS + 1)
    choices = {}
    for root, cost in costs.items():
        parts = math.ceil(BUDGET_PARTS * cost / budget)
        others = np.pad(sums[: len(sums) - parts], (parts, 0), constant_values=-np.inf)
        choices[root] = parts, others + values[root] > sums
        sums = np.maximum(sums, others + values[root])
    chosen, left = [], BUDGET_PARTS
    for root, (parts, better) in reversed(choices.items()):
        if better[left]:
            chosen.append(root)
            left -= parts
    return chosen


def _spread_samples(plan: Plan, count: int, samples: Sequence[Feeds]) -> Sequence[Feeds]:
    """Samples spread over all, as many as ``MAX_WORK`` allows with ``count`` candidates."""
    work = sum(map(count_evaluated_macs, plan.graph.compute_nodes())) * count / 2
    size = min(max(int(MAX_WORK / max(work, 1)), MIN_SAMPLES), MAX_SAMPLES)
    return samples[:: -(-len(samples) // size)]


def stored_members(plan: Plan, root: Node) -> list[Node]:
    """The values of a group that exist as integers, in the order of the graph."""
    members = set(group_members(plan, root))
    return [n for n in plan.graph.nodes if n in members and is_stored(plan, n)]


def rounding_sensitivities(
    plan: Plan,
    roots: Sequence[Node],
    samples: Sequence[Feeds],
    corrected: bool = False,
    deadline: Deadline = NEVER,
    progress: bool | str = False,
) -> dict[Node, float]:
    """For each group the error over the power of the compared values, summed over the outputs, if
    the group alone is int8; 0 for groups that the deadline left no time for.

    ``corrected``: bias correction of the int8 layers that read it takes out their mean errors.
    """
    compared = list(dict.fromkeys(comparisons(plan.graph)))
    ends = [comparison.node for comparison in compared]
    trials = [
        _Trial(plan, stored_members(plan, root), plan.element_types[root], ends) for root in roots
    ]
    if corrected:
        trials = _subtract_mean_errors(trials, plan.graph, samples)
    needed = _exact_reads(plan.graph).union(ends, *(trial.stored for trial in trials))
    noise, signal = np.zeros((2, len(roots), len(compared)))
    for group in show(_groups(plan.graph, samples), "Choosing int16", progress):
        if deadline.is_over:
            break
        evaluator = VariantEvaluator(plan.graph, group)
        exact = _exact(evaluator, needed)
        powers = [sum(power(a, shift) for a in exact[node].arrays) for node, shift in compared]
        for index, noises in enumerate(_noises(trials, exact, evaluator, compared, deadline)):
            if noises is not None:
                signal[index] += powers
                noise[index] += noises
    relative = np.divide(noise, signal, out=np.zeros_like(noise), where=signal > 0)
    return dict(zip(roots, relative.sum(axis=1).tolist(), strict=True))


class _Change(NamedTuple):
    """The changed value of a node as float operators read it, and as int8 operators do.  None: it
    is the exact one.
    """

    real: Stacks | None = None
    stored: Stacks | None = None


UNCHANGED = _Change()


@dataclass(frozen=True)
class _Trial:
    """The float graph of a plan with the ``stored`` values rounded to ``element``.

    ``ends``: nodes whose values are wanted.  ``shifts``: mean errors to subtract from the results
    of layers, as bias correction would.  ``within``: nodes that may change, or all.
    """

    plan: Plan
    stored: Sequence[Node]
    element: ElementType
    ends: Collection[Node]
    shifts: Mapping[Node, Array] = field(default_factory=dict)
    within: Collection[Node] | None = None

    def up_to_layers(self) -> _Trial:
        """The trial up to the int8 layers that read the values first."""
        between, layers, waiting = set[Node](), list[Node](), list(self.stored)
        while waiting:
            for user in self.plan.graph.users[waiting.pop()]:
                if user not in between:
                    between.add(user)
                    is_layer = isinstance(user, Contraction) and self.plan.is_int8(user)
                    (layers if is_layer else waiting).append(user)
        return replace(self, ends=layers, within=between)

    def noise(
        self,
        exact: Mapping[Node, Stacks],
        evaluator: Evaluator,
        compared: Sequence[Comparison],
    ) -> list[float]:
        """The energy of the error of each compared value."""
        changed = self.run(exact, evaluator)

        def node_energy(node: Node, shift: bool) -> float:
            errors = changed[node].mapped(output_error, exact[node]).arrays
            return sum(energy(error, shift) for error in errors)

        return [node_energy(node, shift) if node in changed else 0.0 for node, shift in compared]

    def run(self, exact: Mapping[Node, Stacks], evaluator: Evaluator) -> dict[Node, Stacks]:
        """The values of those ends that change; ``exact`` has the values of the float run."""
        ends = list(self.ends)
        evaluate = partial(self._apply_change, exact, evaluator)
        changes = Execution(self.plan.graph, ends, evaluate, only=()).run()
        pairs = zip(ends, changes, strict=True)
        return {node: change.real for node, change in pairs if change.real is not None}

    def _apply_change(
        self,
        exact: Mapping[Node, Stacks],
        evaluator: Evaluator,
        node: Node,
        operands: Sequence[_Change],
    ) -> _Change:
        is_int8 = self.plan.is_int8(node)
        changed = [operand.stored if is_int8 else operand.real for operand in operands]
        may_change = self.within is None or node in self.within
        value: Stacks | None = None
        if may_change and any(stacks is not None for stacks in changed):
            pairs = zip(node.operands, changed, strict=True)
            reads = [exact[o] if stacks is None else stacks for o, stacks in pairs]
            value = evaluator.compute(node, reads)
            if node in self.shifts:
                shift = self.shifts[node]
                value = value.mapped(lambda array: array - shift)
        if node not in self.stored:
            return UNCHANGED if value is None else _Change(value, value)
        real = exact[node] if value is None else value
        rounded = real.mapped(lambda array: round_reals(array, self.element))
        return _Change(rounded if is_int8 else value, rounded)


def _groups(graph: Graph, samples: Sequence[Feeds]) -> list[Sequence[Feeds]]:
    """Samples that are tried together: many of their values are alive at once."""
    return in_groups(samples, sum(int(node.type.nbytes) for node in graph.compute_nodes()))


def _noises(
    trials: Sequence[_Trial],
    exact: Mapping[Node, Stacks],
    evaluator: Evaluator,
    compared: Sequence[Comparison],
    deadline: Deadline,
) -> list[list[float] | None]:
    """``noise`` of each trial; None where the deadline left no time."""
    with side_by_side():
        return each(
            lambda trial: None if deadline.is_over else trial.noise(exact, evaluator, compared),
            trials,
        )


def _subtract_mean_errors(
    trials: Sequence[_Trial], graph: Graph, samples: Sequence[Feeds]
) -> list[_Trial]:
    """The trials less the mean errors, over all samples, of the channels (last axis) of layers."""
    local = [trial.up_to_layers() for trial in trials]
    needed = _exact_reads(graph).union(*((*trial.stored, *trial.ends) for trial in local))
    sums = [{node: np.zeros(node.type.shape[-1]) for node in trial.ends} for trial in local]
    rows = [dict.fromkeys(trial.ends, 0) for trial in local]
    for group in _groups(graph, samples):
        evaluator = VariantEvaluator(graph, group)
        exact = _exact(evaluator, needed)
        for trial, total, count in zip(local, sums, rows, strict=True):
            for node, value in trial.run(exact, evaluator).items():
                for error in value.mapped(np.subtract, exact[node]).arrays:
                    by_channel = error.reshape(-1, error.shape[-1])
                    total[node] += by_channel.sum(axis=0, dtype=np.float64)
                    count[node] += len(by_channel)
    means = [
        {n: (t / count[n]).astype(np.float32) for n, t in total.items() if count[n] >= MEAN_ROWS}
        for total, count in zip(sums, rows, strict=True)
    ]
    return [replace(trial, shifts=shifts) for trial, shifts in zip(trials, means, strict=True)]


def _exact_reads(graph: Graph) -> set[Node]:
    """Nodes whose exact values a trial reads, besides those it names: Constants, and operands of
    nodes that have several, since these need not all change.
    """
    nodes: set[Node] = set()
    for node in graph.nodes:
        computed = {o for o in node.operands if not isinstance(o, Constant)}
        nodes.update(node.operands if len(computed) > 1 else {*node.operands} - computed)
    return nodes


def _exact(evaluator: VariantEvaluator, needed: Collection[Node]) -> dict[Node, Stacks]:
    """The float values of the ``needed`` nodes."""
    run = Execution(evaluator.graph, (), evaluator.compute, only=needed)
    return {node: values for node, values in run if node in needed}
