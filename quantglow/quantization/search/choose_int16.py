"""``int16_activations="auto"``: choose the values that int16 helps most for its cost.

int16 removes nearly all of a value's rounding sensitivity (``rounding_sensitivity``), since its own
error is 2**16 times less in power.  The values with the largest sum of sensitivities are chosen
whose cost fits ``INT16_BUDGET`` (see ``costs``).
"""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.graph.node import Node
from quantglow.options import QuantizationConfig
from quantglow.processes.deadline import NEVER, Deadline
from quantglow.profiling import Profile
from quantglow.profiling.data import Feeds
from quantglow.quantization.costs import int16_seconds, total_seconds
from quantglow.quantization.plan.int16 import int16_ineligibility, ranges_for_int16, with_int16
from quantglow.quantization.plan.plan import Plan
from quantglow.quantization.search.rounding_sensitivity import most_sensitive, stored_members

INT16_BUDGET = 0.05
"""Maximum extra time of all int16 values, as a share of the network's estimated time."""


def with_chosen_int16(
    plan: Plan,
    profile: Profile,
    config: QuantizationConfig,
    samples: Sequence[Feeds],
    progress: bool | str = False,
    deadline: Deadline = NEVER,
) -> Plan:
    """The plan with some values in int16, as far as sensitivities are known at the deadline."""
    costs = {
        root: int16_seconds(plan, stored_members(plan, root)) for root in int16_candidates(plan)
    }
    budget = INT16_BUDGET * total_seconds(plan)
    worst = most_sensitive(plan, costs, budget, samples, deadline=deadline, progress=progress)
    ranges = ranges_for_int16(plan.graph, profile, config)
    for root in worst:
        # An earlier choice may forbid it: see ``int16_ineligibility``.
        if not int16_ineligibility(plan, root):
            plan = with_int16(plan, ranges, [root])
    return plan


def int16_candidates(plan: Plan) -> list[Node]:
    """A value of each group that could be int16."""
    return [
        root for root in dict.fromkeys(plan.groups.values()) if not int16_ineligibility(plan, root)
    ]
