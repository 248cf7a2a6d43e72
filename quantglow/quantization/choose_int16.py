"""``int16_activations="auto"``: the values whose rounding to int8 harms the outputs most for what
int16 costs.

The error of each alone (see ``harms``) is what int16 saves, since its own is 2**16 times less in
power.  Those with the largest sum are taken that ``BUDGET`` of the network's estimated time (see
``costs``) has room for.
"""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.graph.node import Node
from quantglow.options import QuantizationConfig
from quantglow.profiling import Profile
from quantglow.profiling.data import Feeds
from quantglow.quantization.costs import int16_seconds, total_seconds
from quantglow.quantization.harms import measured_harms, most_harmful, some_of, stored_members
from quantglow.quantization.plan import Plan
from quantglow.quantization.widths import int16_refusal, ranges_for_int16, with_int16

BUDGET = 0.05
"""Of the network's time, for all that becomes int16."""

LEAST_SHARE = 0.002
"""Of the error of all candidates: values with less stay int8, however cheap int16 were."""


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
    some = some_of(plan, len(costs), samples)
    harms = measured_harms(plan, list(costs), some, progress=progress)
    least = LEAST_SHARE * sum(harms.values())
    worth = {root: cost for root, cost in costs.items() if harms[root] > least}
    ranges = ranges_for_int16(plan.graph, profile, config)
    for root in sorted(most_harmful(worth, harms, budget), key=lambda r: -harms[r]):
        # What was chosen before may forbid it: see ``int16_refusal``.
        if not int16_refusal(plan, root):
            plan = with_int16(plan, ranges, [root])
    return plan


def candidates(plan: Plan) -> list[Node]:
    """A value of each group that could be int16."""
    return [root for root in dict.fromkeys(plan.groups.values()) if not int16_refusal(plan, root)]
