"""fuse-functions: functions behind a layer that are worth computing on its sums, at one rounding.

In int8 a function of one value (HardSwish) is a table of 256 bytes, which costs next to nothing:

    int32 sum -> round to int8 -> table -> int8

It rounds twice.  In float32 on the sums it rounds once, and each result takes an operation or two
more.  Where a sum has many products they hide that, and every such function is fused (see
``passes.fuse_activation``).  Of the others those are, whose first rounding harms the outputs most
for what this costs (see ``harms``), as far as ``BUDGET`` goes: harms are spread so unevenly that a
third of the functions of PP-OCR recognition has 95 % of them.

Nothing but a rounding goes away, so this is not tried out on other samples.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.ops.contraction import Contraction
from quantglow.ops.unary import Fusible
from quantglow.options import QuantizationConfig
from quantglow.passes.fuse_activation import fuse_functions
from quantglow.profiling import Profile
from quantglow.profiling.data import Feeds
from quantglow.quantization.costs import fused_function_seconds, total_seconds
from quantglow.quantization.deadline import NEVER, Deadline
from quantglow.quantization.plan.int16 import named_values
from quantglow.quantization.plan.plan import Plan, make_plan
from quantglow.quantization.search.rounding_sensitivity import most_sensitive

BUDGET = 0.02
"""Of the network's time, for all that is fused."""

MAX_SAMPLES = 4
"""On which harms are measured: most of them fit the budget, in whatever order."""


def worth_fusing(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig,
    samples: Sequence[Feeds],
    imported: Graph | None = None,
    deadline: Deadline = NEVER,
) -> frozenset[str]:
    """Names of the functions to be fused, for ``passes.fuse_activation.fuse_functions``; of those
    whose harm is known when the deadline comes.
    """
    plan = make_plan(graph, profile, config, imported)
    found = candidates(plan, named_values(graph, config, imported))
    if not samples:
        return frozenset()
    worst = most_sensitive(
        plan,
        {x: fused_function_seconds(x) for x in found},
        BUDGET * total_seconds(plan),
        samples[:: -(-len(samples) // MAX_SAMPLES)],
        corrected="correct-bias" in config.recovery,
        deadline=deadline,
    )
    return frozenset(found[x].name for x in worst)


def candidates(plan: Plan, kept: Collection[Node] = ()) -> dict[Node, Node]:
    """Results of int8 layers that are rounded to int8 for one function -> this function; but none
    of the ``kept`` values may go away.
    """
    pairs = {
        node.operands[0]: node
        for node in plan.graph.compute_nodes()
        if isinstance(node, Fusible) and isinstance(node.operands[0], Contraction)
    }
    return {x: function for x, function in pairs.items() if _can_be_fused(plan, function, kept)}


def _can_be_fused(plan: Plan, function: Node, kept: Collection[Node]) -> bool:
    """Whether all that goes away with it, like what is behind it in a chain, is int8."""
    left = {n.name: n.op for n in fuse_functions(plan.graph, {function.name}).nodes}
    gone = [n for n in plan.graph.compute_nodes() if left.get(n.name) != n.op]
    return bool(gone) and all(plan.is_int8(n) and n not in kept for n in gone)
