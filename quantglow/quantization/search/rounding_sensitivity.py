"""What the rounding of single values does to a network's outputs, and which to avoid for what that
costs.

Each value alone is rounded in the float network, on a few calibration samples; its harm is the
error of what the outputs are judged by (see ``rounded_run.judged``).  Harms of different values add
up, nearly.
"""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.interpreter import interpret
from quantglow.ops.arithmetic import rounded_reals
from quantglow.ops.contraction import Contraction
from quantglow.ops.work import macs_of
from quantglow.profiling.data import Feeds
from quantglow.profiling.progress import shown
from quantglow.quantization.deadline import NEVER, Deadline
from quantglow.quantization.plan.int16 import group_of, is_stored
from quantglow.quantization.plan.plan import Plan
from quantglow.quantization.search.rounded_run import energy, error_of, power
from quantglow.quantization.search.rounded_run import judges as judges_of
from quantglow.quantization.shape_variants import counterpart, graph_for
from quantglow.types import Array, ElementType
from quantglow.workers import each, side_by_side

FEWEST_SAMPLES, MOST_SAMPLES = 2, 8
"""Calibration samples on which errors are measured; each costs half a run for each candidate."""

WORK = 2e11
"""Multiply-accumulates for which more than the fewest samples are taken."""

MEAN_ROWS = 16
"""Of a layer's results, over all samples, that a mean error is taken of."""

LEAST_SHARE = 0.002
"""Of the error of all candidates: what has less is let be, however cheap it were to avoid."""

SHARES = 2000
"""Of the budget, to which costs are rounded up."""


def worth_their_costs(
    plan: Plan,
    costs: Mapping[Node, float],
    budget: float,
    samples: Sequence[Feeds],
    corrected: bool = False,
    deadline: Deadline = NEVER,
    progress: bool | str = False,
) -> list[Node]:
    """Of groups, whose roundings could be avoided at these costs, those that the budget is best
    spent on, the most harmful first.  The other arguments are those of ``measured_harms``.
    """
    costs = {root: cost for root, cost in costs.items() if cost <= budget}
    if not costs:
        return []
    some = _some(plan, len(costs), samples)
    harms = measured_harms(plan, list(costs), some, corrected, deadline, progress)
    least = LEAST_SHARE * sum(harms.values())
    worth = {root: cost for root, cost in costs.items() if harms[root] > least}
    return sorted(most_harmful(worth, harms, budget), key=lambda root: -harms[root])


def most_harmful(
    costs: Mapping[Node, float], harms: Mapping[Node, float], budget: float
) -> list[Node]:
    """Those with the largest sum of harms whose costs do not exceed the budget, by dynamic
    programming over ``SHARES`` equal parts of it; costs are rounded up to these.
    """
    sums = np.zeros(SHARES + 1)
    taken = {}
    for root, cost in costs.items():
        share = math.ceil(SHARES * cost / budget)
        others = np.pad(sums[: len(sums) - share], (share, 0), constant_values=-np.inf)
        taken[root] = share, others + harms[root] > sums
        sums = np.maximum(sums, others + harms[root])
    found, left = [], SHARES
    for root, (share, better) in reversed(taken.items()):
        if better[left]:
            found.append(root)
            left -= share
    return found


def _some(plan: Plan, count: int, samples: Sequence[Feeds]) -> Sequence[Feeds]:
    """As many of the samples as there is time for with ``count`` candidates, spread over all."""
    work = sum(map(macs_of, plan.graph.compute_nodes())) * count / 2
    wanted = min(max(int(WORK / max(work, 1)), FEWEST_SAMPLES), MOST_SAMPLES)
    return samples[:: -(-len(samples) // wanted)]


def stored_members(plan: Plan, root: Node) -> list[Node]:
    """The values of a group that exist as integers, in the order of the graph."""
    members = set(group_of(plan, root))
    return [n for n in plan.graph.nodes if n in members and is_stored(plan, n)]


def measured_harms(
    plan: Plan,
    roots: Sequence[Node],
    samples: Sequence[Feeds],
    corrected: bool = False,
    deadline: Deadline = NEVER,
    progress: bool | str = False,
) -> dict[Node, float]:
    """For each group the error of what the outputs are judged by, over its power, summed over the
    outputs, if the group alone is int8; 0 for what the deadline left no time for.

    ``corrected``: the biases of the int8 layers that read it make up for their mean errors.
    """
    judges = list(dict.fromkeys(judges_of(plan.graph)))
    ends = [node for node, _ in judges]
    trials = [_Trial(plan, stored_members(plan, root), plan.elements[root], ends) for root in roots]
    if corrected:
        trials = _corrected(trials, plan.graph, samples)
    needed = _asked(plan.graph).union(ends, *(trial.stored for trial in trials))
    noise, signal = np.zeros((2, len(roots), len(judges)))
    for feeds in shown(samples, "Choosing int16", progress):
        if deadline.is_over:
            break
        exact = _exact(plan.graph, feeds, needed)
        powers = [power(exact[node], shift) for node, shift in judges]
        for index, found in enumerate(_noises(trials, exact, feeds, judges, deadline)):
            if found is not None:
                signal[index] += powers
                noise[index] += found
    relative = np.divide(noise, signal, out=np.zeros_like(noise), where=signal > 0)
    return dict(zip(roots, relative.sum(axis=1).tolist(), strict=True))


Judges = Sequence[tuple[Node, bool]]
"""See ``rounded_run.judges``."""


@dataclass(frozen=True)
class _Trial:
    """The float graph of a plan with the ``stored`` values rounded to ``element``.  ``ends``: where
    its values are wanted; ``shifts`` are taken off values, whose biases make up for them;
    ``within``: nodes that may change, or all.
    """

    plan: Plan
    stored: Sequence[Node]
    element: ElementType
    ends: Collection[Node]
    shifts: Mapping[Node, Array] = field(default_factory=dict)
    within: Collection[Node] | None = None

    def up_to_layers(self) -> _Trial:
        """What happens up to the int8 layers that read the values first."""
        between, layers, waiting = set[Node](), list[Node](), list(self.stored)
        while waiting:
            for user in self.plan.graph.users[waiting.pop()]:
                if user not in between:
                    between.add(user)
                    is_layer = isinstance(user, Contraction) and self.plan.is_int8(user)
                    (layers if is_layer else waiting).append(user)
        return replace(self, ends=layers, within=between)

    def noise(self, exact: Mapping[Node, Array], feeds: Feeds, judges: Judges) -> list[float]:
        """The energy of the error of each judge."""
        changed = self.run(exact, feeds)
        return [
            energy(error_of(changed[node], exact[node]), shift) if node in changed else 0.0
            for node, shift in judges
        ]

    def run(self, exact: Mapping[Node, Array], feeds: Feeds) -> dict[Node, Array]:
        """Those of the ends that change; where a float operator gives a stored value, its float
        readers see it as it is.
        """
        changed: dict[Node, Array] = {}
        copies: dict[Node, Array] = {}
        waiting = Counter(self.plan.graph.use_counts)
        waiting.update(self.ends)
        for node in self.plan.graph.nodes:
            seen = ChainMap(copies, changed) if self.plan.is_int8(node) else changed
            may_change = self.within is None or node in self.within
            if may_change and any(o in seen for o in node.operands):
                operands = [seen[o] if o in seen else exact[o] for o in node.operands]
                changed[node] = counterpart(node, feeds).evaluate(*operands)
                if node in self.shifts:
                    changed[node] = changed[node] - self.shifts[node]
            if node in self.stored:
                rounded = changed if self.plan.is_int8(node) else copies
                rounded[node] = rounded_reals(changed.get(node, exact[node]), self.element)
            for operand in node.operands:
                waiting[operand] -= 1
                if not waiting[operand]:
                    changed.pop(operand, None)
                    copies.pop(operand, None)
        return {node: changed[node] for node in self.ends if node in changed}


def _noises(
    trials: Sequence[_Trial],
    exact: Mapping[Node, Array],
    feeds: Feeds,
    judges: Judges,
    deadline: Deadline,
) -> list[list[float] | None]:
    """Of each trial ``noise``; None where the deadline left no time."""
    with side_by_side():
        return each(
            lambda trial: None if deadline.is_over else trial.noise(exact, feeds, judges), trials
        )


def _corrected(trials: Sequence[_Trial], graph: Graph, samples: Sequence[Feeds]) -> list[_Trial]:
    """The trials less the mean errors, over all samples, of the channels (last axis) of layers."""
    local = [trial.up_to_layers() for trial in trials]
    needed = _asked(graph).union(*((*trial.stored, *trial.ends) for trial in local))
    sums = [{node: np.zeros(node.type.shape[-1]) for node in trial.ends} for trial in local]
    rows = [dict.fromkeys(trial.ends, 0) for trial in local]
    for feeds in samples:
        exact = _exact(graph, feeds, needed)
        for trial, total, count in zip(local, sums, rows, strict=True):
            for node, value in trial.run(exact, feeds).items():
                error = (value - exact[node]).reshape(-1, value.shape[-1])
                total[node] += error.sum(axis=0, dtype=np.float64)
                count[node] += len(error)
    means = [
        {n: (t / count[n]).astype(np.float32) for n, t in total.items() if count[n] >= MEAN_ROWS}
        for total, count in zip(sums, rows, strict=True)
    ]
    return [replace(trial, shifts=shifts) for trial, shifts in zip(trials, means, strict=True)]


def _asked(graph: Graph) -> set[Node]:
    """Nodes whose exact values a trial asks for, besides those it names: Constants, and operands of
    several that need not change together.
    """
    found: set[Node] = set()
    for node in graph.nodes:
        computed = {o for o in node.operands if not isinstance(o, Constant)}
        found.update(node.operands if len(computed) > 1 else {*node.operands} - computed)
    return found


def _exact(graph: Graph, feeds: Feeds, needed: Collection[Node]) -> dict[Node, Array]:
    """Float values of nodes of ``graph``."""
    found: dict[str, Array] = {}
    names = {node.name for node in needed}

    def keep(node: Node, value: Array) -> None:
        if node.name in names:
            found[node.name] = value

    interpret(graph_for(feeds, graph), feeds, [keep])
    return {node: found[node.name] for node in needed}
