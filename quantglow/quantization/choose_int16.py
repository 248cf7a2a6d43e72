"""``int16_activations="auto"``: the values whose rounding to int8 harms the outputs most for what
int16 costs.

Each value alone is rounded to int8 in the float network, on a few calibration samples; the error
of what the outputs are judged by (see ``rounded_run.judged``) is what int16 saves, since its own is
2**16 times less in power.  The errors of different values add up, nearly; so those with the largest
sum are taken that ``BUDGET`` of the network's estimated time (see ``costs``) has room for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.interpreter import interpret
from quantglow.ops.arithmetic import dequantize, quant_of, quantize
from quantglow.options import QuantizationConfig
from quantglow.profiling import Profile
from quantglow.profiling.data import Feeds
from quantglow.profiling.progress import shown
from quantglow.quantization.costs import int16_seconds, macs_of, total_seconds
from quantglow.quantization.deadline import NEVER, Deadline
from quantglow.quantization.other_shapes import counterpart, graph_for
from quantglow.quantization.plan import Plan
from quantglow.quantization.rounded_run import energy
from quantglow.quantization.rounded_run import judges as judges_of
from quantglow.quantization.widths import (
    group_of,
    int16_refusal,
    is_stored,
    ranges_for_int16,
    with_int16,
)
from quantglow.types import Array, ElementType

BUDGET = 0.05
"""Of the network's time, for all that becomes int16."""

LEAST_SHARE = 0.002
"""Of the error of all candidates: values with less stay int8, however cheap int16 were."""

FEWEST_SAMPLES, MOST_SAMPLES = 2, 8
"""Calibration samples on which errors are measured; each costs half a run for each candidate."""

SHARES = 2000
"""Of the budget, to which costs are rounded up."""

WORK = 2e11
"""Multiply-accumulates for which more than the fewest samples are taken."""

Values = Mapping[Node, Array]


def with_chosen_int16(
    plan: Plan,
    profile: Profile,
    config: QuantizationConfig,
    samples: Sequence[Feeds],
    progress: bool | str = False,
) -> Plan:
    """The plan with some values in int16."""
    budget = BUDGET * total_seconds(plan)
    costs = {}
    for root in candidates(plan):
        cost = int16_seconds(plan, stored_members(plan, root))
        costs.update({root: cost} if cost <= budget else {})
    harms = measured_harms(plan, list(costs), _some(plan, len(costs), samples), progress)
    least = LEAST_SHARE * sum(harms.values())
    worth = {root: cost for root, cost in costs.items() if harms[root] > least}
    ranges = ranges_for_int16(plan.graph, profile, config)
    for root in sorted(most_harmful(worth, harms, budget), key=lambda r: -harms[r]):
        # What was chosen before may forbid it: see ``int16_refusal``.
        if not int16_refusal(plan, root):
            plan = with_int16(plan, ranges, [root])
    return plan


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


def candidates(plan: Plan) -> list[Node]:
    """A value of each group that could be int16."""
    return [root for root in dict.fromkeys(plan.groups.values()) if not int16_refusal(plan, root)]


def stored_members(plan: Plan, root: Node) -> list[Node]:
    """The values of a group that exist as integers, in the order of the graph."""
    members = set(group_of(plan, root))
    return [n for n in plan.graph.nodes if n in members and is_stored(plan, n)]


def measured_harms(
    plan: Plan,
    roots: Sequence[Node],
    samples: Sequence[Feeds],
    progress: bool | str,
    deadline: Deadline = NEVER,
) -> dict[Node, float]:
    """For each group the error of what the outputs are judged by, over its power, summed over the
    outputs, if the group alone is int8; 0 for what the deadline left no time for.
    """
    judges = list(dict.fromkeys(judges_of(plan.graph)))
    stored = {root: stored_members(plan, root) for root in roots}
    noise, signal = np.zeros((2, len(roots), len(judges)))
    for feeds in shown(samples, "Choosing int16", progress):
        if deadline.is_over:
            break
        exact = _exact(plan.graph, feeds)
        power = [energy(exact[node].astype(np.float64), shift) for node, shift in judges]
        for index, root in enumerate(roots):
            if deadline.is_over:
                break
            signal[index] += power
            changed = rounded_run(plan, exact, stored[root], plan.elements[root], feeds)
            for place, (node, shift) in enumerate(judges):
                if node in changed:
                    difference = np.subtract(changed[node], exact[node], dtype=np.float64)
                    noise[index, place] += energy(difference, shift)
    relative = np.divide(noise, signal, out=np.zeros_like(noise), where=signal > 0)
    return dict(zip(roots, relative.sum(axis=1).tolist(), strict=True))


def _exact(graph: Graph, feeds: Feeds) -> dict[Node, Array]:
    """The float values of the nodes of ``graph``."""
    found: dict[str, Array] = {}
    interpret(graph_for(feeds, graph), feeds, [lambda n, value: found.update({n.name: value})])
    return {node: found[node.name] for node in graph.nodes}


def rounded_run(
    plan: Plan, exact: Values, stored: Sequence[Node], element: ElementType, feeds: Feeds
) -> dict[Node, Array]:
    """The values that change if the ``stored`` ones are rounded to ``element``; where a float
    operator gives one, its float readers see it as it is.  ``exact``: the values of ``feeds``.
    """
    changed: dict[Node, Array] = {}
    copies: dict[Node, Array] = {}
    for node in plan.graph.nodes:
        seen = {**changed, **copies} if plan.is_int8(node) else changed
        if any(o in seen for o in node.operands):
            operands = [seen.get(o, exact[o]) for o in node.operands]
            changed[node] = counterpart(node, feeds).evaluate(*operands)
        if node in stored:
            codes = quantize(changed.get(node, exact[node]), element)
            rounded = changed if plan.is_int8(node) else copies
            rounded[node] = dequantize(codes, quant_of(element))
    return changed
