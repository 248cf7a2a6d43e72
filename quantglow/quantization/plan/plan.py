"""Plan: the precision of every operator, and the parameters of every value.

It is decided on the float graph, before any rewriting.

1. ``FLOAT_RULES`` decide which operators stay float, and why; all others are int8.
2. Values that must share parameters (through pooling, Concat, Reshape, …) form groups.
3. The range of a group gives its element type.

Bodies of loops have plans of their own: products with constant weights are int8, all else is
float.  The float results of a step become its next state, so that a state keeps its precision over
any number of steps; what a product reads is rounded for the product only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from quantglow.interpreter.executor import multiplied_values
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Conv
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.loop import Loop
from quantglow.ir.types import DType, ElementType
from quantglow.profiling import Profile, Range
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.eligibility import NO_INT8_FORM, ineligibility
from quantglow.quantization.plan.float_rules import FLOAT_RULES, make_draft
from quantglow.quantization.plan.network_ends import PRODUCTS, copies
from quantglow.quantization.plan.params import element_types, parameter_groups
from quantglow.support.classes import cached_property


@dataclass(frozen=True)
class Plan:
    """The precision of a graph.  ``reasons``: float node -> why it is float; ``element_types``:
    value -> its integer type; ``groups``: value -> a representative of those that share its type.
    ``bodies``: plans of the bodies of loops, which are float without one.  ``stored``: the products
    whose results are integers; None: those with a reader of integers.
    """

    graph: Graph
    reasons: Mapping[Node, str]
    element_types: Mapping[Node, ElementType]
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
        wide = node in self.integer_results and self.element_types[node].dtype is DType.I16
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
    draft = make_draft(graph, profile, config, chosen, to_float)
    for rule in FLOAT_RULES:
        draft = draft.apply(rule)
    groups = parameter_groups(graph, draft.ranges, draft.reasons)
    types = element_types(draft.ranges, groups, config.symmetric)
    return Plan(graph, draft.reasons, types, groups, config.quantize_output)


EMPTY: Mapping[str, str] = {}

ElementOf = Callable[[str], ElementType | None]
"""The integer type of a value by its name, None if it has none."""


def with_bodies(plan: Plan, element_of: ElementOf, to_float: Mapping[str, str] = EMPTY) -> Plan:
    """The plan with plans of the bodies of all loops that are float for no other reason.

    ``to_float``: operators of bodies that stay float, beside those that the plan has reasons of.
    """
    loops = [node for node in plan.graph.nodes if isinstance(node, Loop)]
    usual = [node for node in loops if plan.reasons.get(node) == NO_INT8_FORM[Loop]]
    excluded = {node.name: reason for node, reason in plan.reasons.items()} | dict(to_float)
    bodies = {n.body: _body_plan(n.body, element_of, excluded) for n in usual}
    return replace(plan, bodies=bodies)


def _body_plan(body: Graph, element_of: ElementOf, to_float: Mapping[str, str]) -> Plan:
    """The plan of one body."""
    types = {x: element_of(x.name) for x in multiplied_values(body)}
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
