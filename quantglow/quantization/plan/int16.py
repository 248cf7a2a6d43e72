"""Activations that are int16 instead of int8.

int16 is symmetric (zero point 0); weights stay int8 and sums int32.  No sum may overflow for any
int16 input, calibrated or not: if the weights of a channel are too many or too large for that,
their scale is enlarged (see ``params.quantize_weights``).  The operands of an operator stay int8 if
it has no exact int16 form, or if its sums are not proved to fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.graph.origins import known_names
from quantglow.ir.ops import AveragePool, Clip, MatMul, ReduceMean, Relu, Softmax
from quantglow.ir.symbolic.size import Dim, decide
from quantglow.ir.types import DType
from quantglow.profiling import Profile, Range
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.eligibility import unary_function
from quantglow.quantization.plan.params import int16_element
from quantglow.quantization.plan.plan import Plan
from quantglow.quantization.plan.scope import match_names
from quantglow.quantization.plan.tensor_ranges import tensor_ranges
from quantglow.support.errors import OptionError

AUTO = ("auto",)
"""Value of ``int16_activations`` that lets ``search.time_budget`` choose."""

MAX_SUM = DType.I32.limits[1]
MAX_INT16 = -DType.I16.limits[0]
MAX_INT8 = 255
"""Maximum magnitudes of an int32 sum, and of the distance of a code from its zero point."""


def with_named_int16(
    plan: Plan,
    profile: Profile,
    config: QuantizationConfig,
    strict: bool = True,
) -> Plan:
    """The plan with the values that ``config.int16_activations`` names, and all that share their
    types, in int16.

    Raises ``OptionError`` for an entry that matches no value or, if ``strict``, none that can be
    int16.
    """
    if config.int16_activations in ((), AUTO):
        return plan
    ranges = ranges_for_int16(plan.graph, profile, config)
    names = value_names(plan.graph)
    for entry in config.int16_activations:
        matches = match_names(entry, names, validate=False, option="int16_activations")
        if not matches:
            raise OptionError(
                f"int16_activations: {entry!r} matches no value of the optimized graph. Remedy: "
                "give the name of a value, a glob, or 're:' and a regular expression."
            )
        plan = _with_entry(plan, ranges, entry, matches, strict)
    return plan


def named_values(graph: Graph, config: QuantizationConfig) -> set[Node]:
    """The values that ``config.int16_activations`` names, also those that cannot be int16."""
    if config.int16_activations == AUTO:
        return set()
    names = value_names(graph)
    entries = config.int16_activations
    return {n for entry in entries for n in match_names(entry, names, validate=False)}


def value_names(graph: Graph) -> dict[str, tuple[Node, ...]]:
    """Every name that a user may know -> the inputs or operators that give the values."""
    return known_names(graph) | {node.name: (node,) for node in graph.inputs}


def _with_entry(
    plan: Plan, ranges: Mapping[Node, Range], entry: str, matches: Sequence[Node], strict: bool
) -> Plan:
    """The plan with the values that an entry matched in int16, as far as they can be; at least one
    must be if ``strict``.
    """
    problems: dict[Node, str] = {}
    for node in matches:
        problems[node] = int16_ineligibility(plan, node)
        plan = plan if problems[node] else with_int16(plan, ranges, [node])
    if strict and all(problems.values()):
        raise OptionError(
            f"int16_activations: {entry!r} matches {matches[0].name!r}, which cannot be int16: "
            f"{problems[matches[0]]}. Remedy: leave it out."
        )
    return plan


def with_int16(plan: Plan, ranges: Mapping[Node, Range], chosen: Iterable[Node]) -> Plan:
    """The plan with the groups of the ``chosen`` values in int16."""
    reaches = {plan.groups[node]: 0.0 for node in chosen}
    for node, values in ranges.items():
        root = plan.groups.get(node)
        if root in reaches:
            reaches[root] = max(reaches[root], -values.low, values.high)
    elements = {root: int16_element(reach) for root, reach in reaches.items()}
    changed = {n: elements[root] for n, root in plan.groups.items() if root in elements}
    return replace(plan, element_types={**plan.element_types, **changed}) if changed else plan


def ranges_for_int16(
    graph: Graph, profile: Profile, config: QuantizationConfig
) -> dict[Node, Range]:
    """The whole ranges of the profile: int16 has steps to spare, and clipping gains nothing."""
    return tensor_ranges(graph, profile, replace(config, calibrate_method="minmax"))


def int16_ineligibility(plan: Plan, value: Node) -> str:
    """Why a value cannot be int16 beside the values that are already, or an empty string."""
    members = group_members(plan, value)
    if not any(is_stored(plan, member) for member in members):
        return "it is not stored as integers"
    readers = dict.fromkeys(r for m in members for r in plan.graph.users[m] if plan.is_int8(r))
    for reader in readers:
        wide = [o in members or is_int16(plan, o) for o in reader.operands]
        if problem := reader_ineligibility(reader, sum(wide)):
            return f"{reader.op} {reader.name!r} {problem}"
    return ""


def is_int16(plan: Plan, value: Node) -> bool:
    return value in plan.element_types and plan.element_types[value].dtype is DType.I16


def group_members(plan: Plan, value: Node) -> list[Node]:
    """The values that have the same element type as this one."""
    root = plan.groups.get(value)
    return [] if root is None else [n for n, other in plan.groups.items() if other is root]


def is_stored(plan: Plan, value: Node) -> bool:
    """Whether a value exists as integers: an operator gives them, or a reader needs them."""
    if isinstance(value, Constant):
        return False
    if isinstance(value, Input) or not plan.is_int8(value):
        return any(plan.is_int8(reader) for reader in plan.graph.users[value])
    return value in plan.integer_results and not _is_skipped(plan, value)


def _is_skipped(plan: Plan, value: Node) -> bool:
    """Whether an int8 value lies inside chains of functions, each of which is one table (see
    ``eligibility.compose``): it is never rounded.
    """
    readers = plan.graph.users[value]
    if unary_function(value) is None or is_int16(plan, value) or not readers:
        return False
    if any(output is value for _, output in plan.graph.outputs):
        return False
    # A Clip or Relu may pass on its operand.
    tables = (r for r in readers if plan.is_int8(r) and not isinstance(r, Clip | Relu))
    return sum(unary_function(r) is not None for r in tables) == len(readers)


def reader_ineligibility(reader: Node, wide: int) -> str:
    """Why an integer operator cannot read ``wide`` operands of int16, or an empty string."""
    terms: Dim = 0
    match reader:
        case Softmax():
            return "has a table of 256 powers"
        case MatMul() if wide > 1:
            return "would multiply int16 by int16, and its sums overflow"
        case MatMul():
            # Only the types of two activations are known.
            terms = reader.x.type.shape[-1] * MAX_INT8
        case ReduceMean():
            terms = reader.count
        case AveragePool():
            terms = math.prod(reader.kernel)
    return "has sums too long for int32" if decide(terms * MAX_INT16 > MAX_SUM) else ""
