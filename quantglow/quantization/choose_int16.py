"""``int16_activations="auto"``: the values whose rounding to int8 harms the outputs most for what
int16 costs.

Each value alone is rounded to int8 in the float network, on a few calibration samples; the error
of the outputs is what int16 saves, since its own is 2**16 times less in power.  The errors of
different values add up, nearly, so the best are taken one by one, by error saved for each second
added, until ``BUDGET`` of the network's estimated time (see ``costs``) is spent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from quantglow.graph.node import Node
from quantglow.interpreter import evaluate, interpret
from quantglow.ops.arithmetic import dequantize, quant_of, quantize
from quantglow.options import QuantizationConfig
from quantglow.profiling import Profile
from quantglow.profiling.data import Feeds
from quantglow.profiling.progress import shown
from quantglow.quantization.costs import int16_seconds, total_seconds
from quantglow.quantization.plan import Plan
from quantglow.quantization.rounded_run import told_apart
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

LEAST_SHARE = 0.01
"""Of the error of all candidates: values with less stay int8, however cheap int16 were."""

SAMPLES = 2
"""Calibration samples on which errors are measured; each costs half a run for each candidate."""

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
    harms = measured_harms(plan, list(costs), samples[:: -(-len(samples) // SAMPLES)], progress)
    least = LEAST_SHARE * sum(harms.values())
    ranges = ranges_for_int16(plan.graph, profile, config)
    for root in sorted(costs, key=lambda r: -harms[r] / costs[r]):
        # What was chosen before may forbid it: see ``int16_refusal``.
        if harms[root] >= least and costs[root] <= budget and not int16_refusal(plan, root):
            plan, budget = with_int16(plan, ranges, [root]), budget - costs[root]
    return plan


def candidates(plan: Plan) -> list[Node]:
    """A value of each group that could be int16."""
    return [root for root in dict.fromkeys(plan.groups.values()) if not int16_refusal(plan, root)]


def stored_members(plan: Plan, root: Node) -> list[Node]:
    """The values of a group that exist as integers, in the order of the graph."""
    members = set(group_of(plan, root))
    return [n for n in plan.graph.nodes if n in members and is_stored(plan, n)]


def measured_harms(
    plan: Plan, roots: Sequence[Node], samples: Sequence[Feeds], progress: bool | str
) -> dict[Node, float]:
    """For each group the error of the outputs (``told_apart``), over their power, if it alone is
    int8.
    """
    harms = dict.fromkeys(roots, 0.0)
    stored = {root: stored_members(plan, root) for root in roots}
    outputs = list(dict.fromkeys(told_apart(plan.graph)))
    for feeds in shown(samples, "Choosing int16", progress):
        exact: dict[Node, Array] = {}
        interpret(plan.graph, feeds, [exact.__setitem__])
        for root in roots:
            changed = rounded_run(plan, exact, stored[root], plan.elements[root])
            harms[root] += sum(relative_error(exact[o], changed.get(o, exact[o])) for o in outputs)
    return harms


def rounded_run(
    plan: Plan, exact: Values, stored: Sequence[Node], element: ElementType
) -> dict[Node, Array]:
    """The values that change if the ``stored`` ones are rounded to ``element``; where a float
    operator gives one, its float readers see it as it is.
    """
    changed: dict[Node, Array] = {}
    copies: dict[Node, Array] = {}
    for node in plan.graph.nodes:
        seen = {**changed, **copies} if plan.is_int8(node) else changed
        if any(o in seen for o in node.operands):
            operands = {o: seen.get(o, exact[o]) for o in node.operands}
            changed[node] = evaluate(node, operands, {})
        if node in stored:
            codes = quantize(changed.get(node, exact[node]), element)
            rounded = changed if plan.is_int8(node) else copies
            rounded[node] = dequantize(codes, quant_of(element))
    return changed


def relative_error(exact: Array, found: Array) -> float:
    """Power of the difference over the power of ``exact``; 0 where there is none."""
    difference = np.subtract(found, exact, dtype=np.float64)
    power = float(np.square(exact, dtype=np.float64).sum())
    return float(np.square(difference).sum()) / power if power else 0.0
