"""Planning of general programs.

A process that finds its programs on disk does not import this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quantglow.codegen.llvm.isa.target import Target
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.symbolic.guards import Guards
from quantglow.ir.symbolic.size import Dim, to_expression
from quantglow.ir.symbolic.straight_line import Evaluation
from quantglow.memory.planner import OrderedPlan
from quantglow.memory.planning import plan_program
from quantglow.memory.plans import PlannedProgram
from quantglow.runtime.shapes.general_plans import EndSizes, GeneralPlan
from quantglow.support import debug
from quantglow.support.classes import Concise
from quantglow.transforms.program.copy_elision import Donation


@dataclass(frozen=True, eq=False, repr=False)
class BuiltPlan(Concise):
    """A general program as this process made it; ``guards`` grow with its code."""

    graph: Graph
    planned: PlannedProgram
    order: OrderedPlan
    guards: Guards


def plan_general(
    graph: Graph,
    guards: Guards,
    target: Target | None,
    donations: Sequence[Donation],
    schedule: str,
    seconds: dict[str, float],
) -> tuple[BuiltPlan, GeneralPlan]:
    """The program of a graph whose sizes have these guards.  Raises ``QuantglowError``."""
    with debug.time_stage("general plan"):
        lowered = plan_program(graph, target, seconds, donations=donations, schedule=schedule)
        result = BuiltPlan(graph, lowered, OrderedPlan.of(lowered.program, lowered.plan), guards)
    return result, _to_plan(result)


def _to_plan(source: BuiltPlan) -> GeneralPlan:
    """The plan of a program as numbers."""
    sizes = Evaluation()

    def position(value: Dim) -> int:
        return sizes.add(to_expression(value))

    def ends(nodes: Iterable[Node]) -> EndSizes:
        return tuple((n.type.dtype, tuple(map(position, n.type.shape))) for n in nodes)

    graph, traffic = source.graph, source.planned.traffic
    moved = position(traffic.moved)
    buffers = tuple(map(position, source.order.nbytes))
    inputs, outputs = ends(graph.inputs), ends(node for _, node in graph.outputs)
    memory = (traffic.weights, moved, buffers, source.order.arena)
    figures = source.planned.figures
    return GeneralPlan(source.guards, sizes.program(), *memory, inputs, outputs, figures)
