"""Choices within a time budget: operator costs, int16 values, functions fused into sums.

Costs are estimated from shapes alone.  The rates are those of the reference processor, so that the
choices they lead to depend on the network only, not on the machine that quantizes it.

``int16_activations="auto"``: int16 removes nearly all of a value's rounding sensitivity
(``rounding_sensitivity``), since its own error is 2**16 times less in power.  The values with the
largest sum of sensitivities are chosen whose cost fits ``INT16_BUDGET``.

fuse-functions: in int8 a function of one value (HardSwish) is a table of 256 bytes, which costs
next to nothing:

    int32 sum -> round to int8 -> table -> int8

It rounds twice.  In float32 on the sums it rounds once, and each result takes an operation or two
more.  If a sum has many products, their time hides that, and every such function is fused (see
``transforms.float.fusion``).  Other functions are fused if the sensitivity of the outputs to the
first rounding is large for the cost (see ``rounding_sensitivity``), as far as ``FUSION_BUDGET``
goes.  Sensitivities are so uneven that a third of the functions of PP-OCR recognition has 95 % of
them.  Only a rounding is left out, so this is not tried on other samples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Conv, MatMul
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.unary import Fusible
from quantglow.ir.ops.work import (
    DENSE_MACS,
    DEPTHWISE_MACS,
    FLOAT_FUNCTIONS,
    FLOAT_NBYTES,
    FLOAT_TIMES,
    FUSED_FUNCTIONS,
    INT16_DENSE_MACS,
    INT16_DEPTHWISE_MACS,
    INT16_FUNCTIONS,
    INT16_TABLES,
    MOVED_BYTES,
    RESULTS,
    WEIGHT_BYTES,
    count_macs,
)
from quantglow.profiling import Profile
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.options import FAST, QuantizationConfig
from quantglow.quantization.plan.eligibility import unary_function
from quantglow.quantization.plan.int16 import (
    int16_ineligibility,
    named_values,
    ranges_for_int16,
    with_int16,
)
from quantglow.quantization.plan.plan import Plan, make_plan
from quantglow.quantization.search.rounding_sensitivity import most_sensitive, stored_members
from quantglow.support.processes.interrupts import NEVER, Deadline
from quantglow.transforms.float.fusion import fuse_functions

INT16_BUDGET = 0.05
"""Maximum extra time of all int16 values, as a share of the network's estimated time."""

FUSION_BUDGET = 0.02
"""Maximum extra time of all fused functions, as a share of the network's estimated time."""

MAX_SAMPLES, FAST_SAMPLES = 4, 2
"""Maximum number of samples on which sensitivities are measured, and the same with
``effort="fast"``: most functions fit the budget in any order."""


def total_seconds(plan: Plan) -> float:
    """Time of the whole plan with every stored integer in 8 bits."""
    return sum(_seconds(plan, node) for node in plan.graph.compute_nodes())


def _seconds(plan: Plan, node: Node) -> float:
    itemsize = 1 if plan.is_int8(node) else 4
    moved = sum(o.type.size for o in node.operands if not isinstance(o, Constant))
    if isinstance(node, Contraction | MatMul):
        finished = node.type.size / RESULTS
        return _products_seconds(node) + finished + itemsize * moved / MOVED_BYTES
    seconds = itemsize * (moved + node.type.size) / MOVED_BYTES
    if not plan.is_int8(node) and node.has(Trait.FUNCTION):
        seconds += node.type.size / FLOAT_FUNCTIONS
    return seconds


def _products_seconds(node: Node) -> float:
    """Time of the multiply-accumulates of an int8 operator, and of reading its weights."""
    weights = node.w.type.size if isinstance(node, Contraction) else 0
    rate = DEPTHWISE_MACS if is_depthwise(node) else DENSE_MACS
    return count_macs(node) / rate + weights / WEIGHT_BYTES


def is_depthwise(node: Node) -> bool:
    return isinstance(node, Conv) and node.depthwise


def int16_seconds(plan: Plan, stored: Iterable[Node]) -> float:
    """Extra time for storing the values in 16 bits: a byte of every element written and read, more
    dot products and wider weights in their readers, functions without a small table.
    """
    added = 0.0
    for value in stored:
        readers = [r for r in plan.graph.users[value] if plan.is_int8(r)]
        added += value.type.size * (1 + len(readers)) / MOVED_BYTES
        if unary_function(value) is not None:
            added += value.type.size / INT16_FUNCTIONS
        added += sum(_reading_seconds(value, reader) for reader in readers)
    return added


def _reading_seconds(value: Node, reader: Node) -> float:
    """Extra time of an operator that reads int16, beside the bytes of the value."""
    if unary_function(reader) is not None:
        exact = reader.has(Trait.EXACT_STEPS)
        return value.type.size / (INT16_FUNCTIONS if exact else INT16_TABLES)
    if value is not reader.operands[0]:
        return 0.0
    weights = reader.w.type.size if isinstance(reader, Contraction) else 0
    rate = INT16_DEPTHWISE_MACS if is_depthwise(reader) else INT16_DENSE_MACS
    return count_macs(reader) / rate + weights / WEIGHT_BYTES


def fused_function_seconds(layer: Node) -> float:
    """Extra time of an int8 layer that applies a cheap function to its sums."""
    return layer.type.size / FUSED_FUNCTIONS


def float_seconds(plan: Plan, node: Node) -> float:
    """Extra time for computing an int8 operator in float, between operators that stay int8."""
    values = [node, *(o for o in node.operands if not isinstance(o, Constant))]
    moved = FLOAT_NBYTES * sum(v.type.size for v in values if v in plan.element_types)
    added = moved / MOVED_BYTES + (FLOAT_TIMES - 1) * _products_seconds(node)
    return added + (node.type.size / INT16_FUNCTIONS if unary_function(node) is not None else 0.0)


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


def worth_fusing(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig,
    samples: Sequence[Feeds],
    deadline: Deadline = NEVER,
) -> frozenset[str]:
    """Names of the functions to fuse, for ``transforms.float.fusion.fuse_functions``, as far as
    their sensitivities are known at the deadline.
    """
    plan = make_plan(graph, profile, config)
    candidates = fusion_candidates(plan, named_values(graph, config))
    if not samples:
        return frozenset()
    most = FAST_SAMPLES if config.effort == FAST else MAX_SAMPLES
    worst = most_sensitive(
        plan,
        {x: fused_function_seconds(x) for x in candidates},
        FUSION_BUDGET * total_seconds(plan),
        samples[:: -(-len(samples) // most)],
        corrected="correct-bias" in config.recovery,
        deadline=deadline,
    )
    return frozenset(candidates[x].name for x in worst)


def fusion_candidates(plan: Plan, named: Collection[Node] = ()) -> dict[Node, Node]:
    """Result of an int8 layer that is rounded to int8 for one function -> this function.  None of
    the ``named`` values may disappear.
    """
    pairs = {
        node.operands[0]: node
        for node in plan.graph.compute_nodes()
        if isinstance(node, Fusible) and isinstance(node.operands[0], Contraction)
    }
    return {x: function for x, function in pairs.items() if _can_be_fused(plan, function, named)}


def _can_be_fused(plan: Plan, function: Node, named: Collection[Node]) -> bool:
    """Whether all operators that fusion removes, such as others of a chain, are int8."""
    left = {n.name: n.op for n in fuse_functions(plan.graph, {function.name}).nodes}
    gone = [n for n in plan.graph.compute_nodes() if left.get(n.name) != n.op]
    return bool(gone) and all(plan.is_int8(n) and n not in named for n in gone)
