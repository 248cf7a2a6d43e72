"""Plans of the bodies of loops: products with constant weights are int8, all else is float.

The float results of a step become its next state, so that a state keeps its precision over any
number of steps; what a product reads is rounded for the product only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.interpreter.loops import multiplied
from quantglow.ops.contraction import Contraction
from quantglow.ops.convolution import Conv
from quantglow.ops.loop import Loop
from quantglow.quantization.plan.eligibility import NO_INT8_FORM, ineligibility
from quantglow.quantization.plan.plan import Plan
from quantglow.types import ElementType

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
    bodies = {n.body: body_plan(n.body, element_of, excluded) for n in usual}
    return replace(plan, bodies=bodies)


def body_plan(body: Graph, element_of: ElementOf, to_float: Mapping[str, str]) -> Plan:
    """The plan of one body."""
    found = {x: element_of(x.name) for x in multiplied(body)}
    elements = {x: element for x, element in found.items() if element is not None}
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
