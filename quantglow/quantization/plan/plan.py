"""Plan: the precision of every operator, and the parameters of every value.

It is decided on the float graph, before any rewriting.

1. A node is int8 if its op has a rule, its tensors have ranges, and the user did not exclude it.
2. The tail stays float: operators that only move or finish the results of the last matrix products.
3. So does the head, which scales and shifts an input, and a divisor: its small values would become
   0.
4. A connected group of int8 nodes that only move or combine elements is not worth its conversions.
5. Values that must share parameters (through pooling, Concat, Reshape, …) form groups.

The bodies of loops have plans of their own: products with constant weights are int8, all else is
float.  The float results of a step become its next state, so that a state keeps its precision over
any number of steps; what a product reads is rounded for the product only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from quantglow.interpreter.branches import in_branches
from quantglow.interpreter.executor import multiply
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Clip, Concat, Conv, Relu, Softmax
from quantglow.ir.ops.binary import Binary
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.loop import Loop
from quantglow.ir.types import DType, ElementType
from quantglow.profiling import Profile, Range
from quantglow.profiling.specials import Specials, describe_specials
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.eligibility import (
    DIVISOR,
    NO_INT8_FORM,
    divisors,
    ineligibility,
    normalizations,
)
from quantglow.quantization.plan.float_heuristics import float_by_heuristics
from quantglow.quantization.plan.network_ends import (
    COPIED,
    PRODUCTS,
    byte_ranges,
    copies,
    head,
    preparation,
    tail,
)
from quantglow.quantization.plan.params import activation_element
from quantglow.quantization.plan.scope import excluded_nodes
from quantglow.quantization.plan.tensor_ranges import (
    LARGE,
    masked_values,
    special_values,
    tensor_ranges,
)
from quantglow.support.classes import cached_property

MASKED = "a mask is among its values: 256 steps would tell nothing else apart"
UNTAKEN = "no calibration sample took this branch"
OVERRIDDEN = "int8 would lose more accuracy than max_drop allows"

EXTREME_RATIO = 16.0
"""Minimum ratio of the range of a Concat to that of a part from which the part keeps its own scale
for its other readers."""

EMPTY: Mapping[str, str] = {}

ElementOf = Callable[[str], ElementType | None]
"""The integer type of a value by its name, None if it has none."""


@dataclass(frozen=True)
class Plan:
    """The precision of a graph.  ``reasons``: float node -> why it is float; ``elements``: value ->
    its integer type; ``groups``: value -> a representative of those that share its type.
    ``bodies``: plans of the bodies of loops, which are float without one.  ``stored``: the products
    whose results are integers; None: those with a reader of integers.
    """

    graph: Graph
    reasons: Mapping[Node, str]
    elements: Mapping[Node, ElementType]
    groups: Mapping[Node, Node]
    quantize_output: bool
    bodies: Mapping[Graph, Plan] = field(default_factory=dict)
    stored: frozenset[str] | None = None

    def is_int8(self, node: Node) -> bool:
        """Whether the node computes on int8 operands."""
        return not isinstance(node, Constant) and node.operands != () and node not in self.reasons

    def precision(self, node: Node) -> str:
        """``float``, or the width of the integers the node gives: ``int8`` or ``int16``.  A node
        that gives float32 from integers is ``int8``, too.
        """
        if not self.is_int8(node):
            return "float"
        wide = node in self.integer_results and self.elements[node].dtype is DType.I16
        return "int16" if wide else "int8"

    @cached_property
    def copies(self) -> frozenset[Node]:
        """Operators whose float form copies inputs to outputs, see ``network_ends.copies``; none if
        outputs are the integers.
        """
        return frozenset() if self.quantize_output else copies(self.graph)

    @cached_property
    def integer_results(self) -> frozenset[Node]:
        """int8 nodes that store integers; the others (matrix products only) give float32."""
        outputs = {node for _, node in self.graph.outputs} if self.quantize_output else set()
        nodes: set[Node] = set()
        for node in reversed(self.graph.nodes):
            if not self.is_int8(node):
                continue
            if not isinstance(node, PRODUCTS) or node in outputs or self._stores(node, nodes):
                nodes.add(node)
        return frozenset(nodes)

    def _stores(self, product: Node, storing: set[Node]) -> bool:
        if self.stored is not None:
            return product.name in self.stored
        readers = self.graph.users[product]
        return any(self._reads_int8(user, product, storing) for user in readers)

    def _reads_int8(self, user: Node, node: Node, storing: set[Node]) -> bool:
        if not self.is_int8(user):
            return False
        # A Conv with a float result adds its residual in float.
        float_residual = isinstance(user, Conv) and user not in storing and node is not user.x
        return not float_residual


def make_plan(
    graph: Graph,
    profile: Profile,
    config: QuantizationConfig,
    chosen: Mapping[str, Range] | None = None,
    to_float: Collection[str] = (),
) -> Plan:
    """The plan for ``graph``; ``chosen``: ranges that replace those of the configured method.

    ``to_float``: names of operators that accuracy control keeps in float.

    Raises ``IgnoredScopeError``.
    """
    ranges = tensor_ranges(graph, profile, config)
    ranges |= {n: chosen[n.name] for n in ranges if n.name in chosen} if chosen else {}
    bytes_of = byte_ranges(graph)
    ranges |= {node: values for node, values in bytes_of.items() if node in ranges}
    reasons = excluded_nodes(graph, config)
    reasons |= {n: OVERRIDDEN for n in graph.compute_nodes() if n.name in to_float}
    reasons |= {n: UNTAKEN for n in _untaken(graph, profile) if n not in reasons}
    special, masked = special_values(graph, profile), masked_values(graph, profile)
    for node in graph.compute_nodes():
        masking = (
            f"its values include {describe_specials(special[node])}" if node in special else ""
        )
        masking = masking or (MASKED if node in masked else "")
        reason = reasons.get(node) or masking or ineligibility(node)
        reason = reason or _range_ineligibility(node, ranges, special, masked)
        if reason:
            reasons[node] = reason
    if not config.quantize_output:
        for node in tail(graph):
            reasons.setdefault(node, "finishes the output in float")
        for node in _copied_only(graph):
            reasons.setdefault(node, COPIED)
    for node in head(graph):
        reasons.setdefault(node, preparation(node, graph, bytes_of))
    for node, reason in float_by_heuristics(graph, reasons.keys(), ranges):
        reasons.setdefault(node, reason)
    for node in divisors(graph, reasons.keys(), ranges):
        reasons.setdefault(node, DIVISOR)
    for node in normalizations(graph, reasons.keys()):
        reasons[node] = "its operand comes in float, and in int8 would be rounded once more"
    for node in _read_as_float(graph, reasons):
        reasons[node] = "all that reads it is float"
    for node in _not_worth_it(graph, reasons):
        reasons[node] = "no int8 operator next to it is worth the conversions"
    groups = _groups(graph, ranges, reasons)
    elements = _elements(ranges, groups, config.symmetric)
    return Plan(graph, reasons, elements, groups, config.quantize_output)


def _untaken(graph: Graph, profile: Profile) -> list[Node]:
    """Nodes of branches whose values the profile does not know."""
    floats = (node for node in graph.compute_nodes() if node.type.dtype.is_float)
    unknown = [node for node in floats if node.name not in profile.histograms]
    inside = in_branches(graph) if unknown else frozenset()
    return [node for node in unknown if node in inside]


def _range_ineligibility(
    node: Node,
    ranges: Mapping[Node, Range],
    special: Mapping[Node, Specials],
    masked: Collection[Node],
) -> str:
    """Why the ranges of its tensors keep the node float, or an empty string."""
    values = [v for v in (node, *node.operands) if v.type.dtype.is_float]
    for value in values:
        if value in special:
            kind = "constant" if isinstance(value, Constant) else "operand"
            return f"its {kind} {value.name!r} includes {describe_specials(special[value])}"
        if value in masked:
            return MASKED
        if value not in ranges and isinstance(value, Constant):
            return f"its constant {value.name!r} has no finite range"
        if value not in ranges:
            return f"the profile has no range for {value.name!r}"
    is_hidden = isinstance(node, Binary | Softmax) and any(ranges[v].low <= -LARGE for v in values)
    return MASKED if is_hidden else ""


def _copied_only(graph: Graph) -> list[Node]:
    """Operators whose results nothing reads but an output that copies an input."""
    copied = copies(graph)
    return [node for node in copied if all(user in copied for user in graph.users[node])]


def _read_as_float(graph: Graph, reasons: Mapping[Node, str]) -> list[Node]:
    """Sums, products and changes of layout whose readers are all float: int8 would add a rounding,
    and save none.

    One is the residual sum before a normalization, with its few very large values.
    """
    floats, nodes = set(reasons), []
    for node in reversed(graph.compute_nodes()):
        readers = graph.users[node]
        light = node.has(Trait.SERVES_READERS) and node not in reasons
        if light and readers and all(user in floats for user in readers):
            floats.add(node)
            nodes.append(node)
    return nodes


def _not_worth_it(graph: Graph, reasons: Mapping[Node, str]) -> Iterator[Node]:
    """int8 nodes in connected groups of light nodes only."""
    nodes = [n for n in graph.compute_nodes() if n not in reasons]
    groups = UnionFind(nodes)
    for node in nodes:
        for operand in node.operands:
            if operand in groups:
                groups.join(node, operand)
    worthy = {groups.find(n) for n in nodes if not n.has(Trait.LIGHT)}
    return (n for n in nodes if groups.find(n) not in worthy)


def _groups(
    graph: Graph, ranges: Mapping[Node, Range], reasons: Mapping[Node, str]
) -> dict[Node, Node]:
    """Value with a range -> the representative of those that share its parameters."""
    groups = UnionFind(ranges)
    for node in graph.compute_nodes():
        if node not in reasons:
            for operand in _sharing(node, graph, ranges, reasons):
                groups.join(node, operand)
    return {node: groups.find(node) for node in ranges}


def _elements(
    ranges: Mapping[Node, Range], groups: Mapping[Node, Node], symmetric: bool
) -> dict[Node, ElementType]:
    """One element type for each group of values that share parameters."""
    unions: dict[Node, Range] = {}
    for node, values in ranges.items():
        root = groups[node]
        unions[root] = unions[root].union(values) if root in unions else values
    elements = {root: activation_element(r, symmetric) for root, r in unions.items()}
    return {node: elements[groups[node]] for node in ranges}


def _sharing(
    node: Node, graph: Graph, ranges: Mapping[Node, Range], reasons: Mapping[Node, str]
) -> list[Node]:
    """The operands that should have the parameters of the node's result."""
    if isinstance(node, Concat):
        return [p for p in node.parts if not _keeps_own_scale(p, node, graph, ranges, reasons)]
    if node.has(Trait.KEEPS_QUANTIZATION):
        return [operand for operand in node.operands if operand.type.dtype.is_float]
    if isinstance(node, Relu | Clip) and clips_nothing(node, ranges[node.x]):
        return [node.x]
    return []


def clips_nothing(node: Relu | Clip, x: Range) -> bool:
    """Whether a Relu or Clip leaves every value of the range as it is."""
    low, high = (0.0, float("inf")) if isinstance(node, Relu) else (node.low, node.high)
    return low <= x.low and x.high <= high and low <= 0 <= high


def _keeps_own_scale(
    part: Node,
    concat: Concat,
    graph: Graph,
    ranges: Mapping[Node, Range],
    reasons: Mapping[Node, str],
) -> bool:
    """Whether a part is so narrow that its other int8 readers need a finer scale."""
    others = [u for u in graph.users[part] if u is not concat and u not in reasons]
    width, whole = _with_zero(ranges[part]).width, _with_zero(ranges[concat]).width
    return bool(others) and 0 < width * EXTREME_RATIO < whole


def _with_zero(values: Range) -> Range:
    return values.union(Range(0.0, 0.0))


class UnionFind:
    """Disjoint sets of nodes."""

    def __init__(self, nodes: Iterator[Node] | Mapping[Node, object] | list[Node]) -> None:
        self.parents = {node: node for node in nodes}

    def __contains__(self, node: Node) -> bool:
        return node in self.parents

    def find(self, node: Node) -> Node:
        """The representative of the node's set."""
        root = node
        while self.parents[root] is not root:
            root = self.parents[root]
        while self.parents[node] is not root:
            self.parents[node], node = root, self.parents[node]
        return root

    def join(self, one: Node, other: Node) -> None:
        self.parents[self.find(other)] = self.find(one)


def with_bodies(plan: Plan, element_of: ElementOf, to_float: Mapping[str, str] = EMPTY) -> Plan:
    """The plan with plans of the bodies of all loops that are float for no other reason.

    ``to_float``: operators of bodies that stay float, beside those that the plan has reasons of.
    """
    loops = [node for node in plan.graph.nodes if isinstance(node, Loop)]
    usual = [node for node in loops if plan.reasons.get(node) == NO_INT8_FORM[Loop]]
    excluded = {node.name: reason for node, reason in plan.reasons.items()} | dict(to_float)
    bodies = {n.body: body_plan(n.body, element_of, excluded) for n in usual}
    return replace(plan, bodies=bodies)


def body_plan(body: Graph, element_of: ElementOf, to_float: Mapping[str, str]) -> Plan:
    """The plan of one body."""
    types = {x: element_of(x.name) for x in multiply(body)}
    elements = {x: element for x, element in types.items() if element is not None}
    reasons = {
        node: reason
        for node in body.nodes
        if (reason := to_float.get(node.name) or _reason(node, elements))
    }
    plan = Plan(body, reasons, elements, {x: x for x in elements}, quantize_output=False)
    return with_bodies(plan, element_of, to_float)


def _reason(node: Node, elements: Mapping[Node, ElementType]) -> str:
    """Why a node of a body is float, or an empty string."""
    if not node.operands:
        return ""
    if not isinstance(node, Contraction):
        return ineligibility(node) or NO_INT8_FORM[Loop]
    if isinstance(node, Conv) and node.residual is not None:
        return "it adds to a state, which stays float"
    if node.x not in elements:
        return f"the profile has no range for {node.x.name!r}"
    return ineligibility(node)
