"""Plans of the bodies of loops: products with constant weights are int8, all else is float.

The float results of a step become its next state, so that a state keeps its precision over any
number of steps; what a product reads is rounded for the product only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from quantglow.interpreter.executor import multiplied_values
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Conv
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.loop import Loop
from quantglow.ir.types import ElementType
from quantglow.quantization.plan.eligibility import NO_INT8_FORM, ineligibility
from quantglow.quantization.plan.plan import Plan

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
