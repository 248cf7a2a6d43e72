"""fuse-functions: compute functions behind a layer on its sums, with one rounding, where it is
worth the time.

In int8 a function of one value (HardSwish) is a table of 256 bytes, which costs next to nothing:

    int32 sum -> round to int8 -> table -> int8

It rounds twice.  In float32 on the sums it rounds once, and each result takes an operation or two
more.  If a sum has many products, their time hides that, and every such function is fused (see
``passes.fuse_activation``).  Other functions are fused if the sensitivity of the outputs to the
first rounding is large for the cost (see ``rounding_sensitivity``), as far as ``FUSION_BUDGET``
goes.  Sensitivities are so uneven that a third of the functions of PP-OCR recognition has 95 % of
them.

Only a rounding is left out, so this is not tried on other samples.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.ops.contraction import Contraction
from quantglow.ops.unary import Fusible
from quantglow.options import FAST, QuantizationConfig
from quantglow.passes.fuse_activation import fuse_functions
from quantglow.processes.deadline import NEVER, Deadline
from quantglow.profiling import Profile
from quantglow.profiling.data import Feeds
from quantglow.quantization.costs import fused_function_seconds, total_seconds
from quantglow.quantization.plan.int16 import named_values
from quantglow.quantization.plan.plan import Plan, make_plan
from quantglow.quantization.search.rounding_sensitivity import most_sensitive

FUSION_BUDGET = 0.02
"""Maximum extra time of all fused functions, as a share of the network's estimated time."""

MAX_SAMPLES, FAST_SAMPLES = 4, 2
"""Maximum number of samples on which sensitivities are measured, and the same with
``effort="fast"``: most functions fit the budget in any order."""


def worth_fusing(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig,
    samples: Sequence[Feeds],
    deadline: Deadline = NEVER,
) -> frozenset[str]:
    """Names of the functions to fuse, for ``passes.fuse_activation.fuse_functions``, as far as
    their sensitivities are known at the deadline.
    """
    plan = make_plan(graph, profile, config)
    found = fusion_candidates(plan, named_values(graph, config))
    if not samples:
        return frozenset()
    most = FAST_SAMPLES if config.effort == FAST else MAX_SAMPLES
    worst = most_sensitive(
        plan,
        {x: fused_function_seconds(x) for x in found},
        FUSION_BUDGET * total_seconds(plan),
        samples[:: -(-len(samples) // most)],
        corrected="correct-bias" in config.recovery,
        deadline=deadline,
    )
    return frozenset(found[x].name for x in worst)


def fusion_candidates(plan: Plan, kept: Collection[Node] = ()) -> dict[Node, Node]:
    """Result of an int8 layer that is rounded to int8 for one function -> this function.  None of
    the ``kept`` values may disappear.
    """
    pairs = {
        node.operands[0]: node
        for node in plan.graph.compute_nodes()
        if isinstance(node, Fusible) and isinstance(node.operands[0], Contraction)
    }
    return {x: function for x, function in pairs.items() if _can_be_fused(plan, function, kept)}


def _can_be_fused(plan: Plan, function: Node, kept: Collection[Node]) -> bool:
    """Whether all operators that fusion removes, such as others of a chain, are int8."""
    left = {n.name: n.op for n in fuse_functions(plan.graph, {function.name}).nodes}
    gone = [n for n in plan.graph.compute_nodes() if left.get(n.name) != n.op]
    return bool(gone) and all(plan.is_int8(n) and n not in kept for n in gone)
