"""Planning: a graph becomes primitives, then instructions on memory.

A process that finds its programs on disk does not import this.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from quantglow.ir.graph.graph import Graph
from quantglow.ir.program.verify import verify_program
from quantglow.memory.plans import FAST, PlannedProgram, pieces_for
from quantglow.memory.schedule import arrange_program
from quantglow.support import debug
from quantglow.transforms.lowering import lower
from quantglow.transforms.program.copy_elision import Donation
from quantglow.transforms.program.generate import generate_by_node
from quantglow.transforms.split_batch import batch_size, split_batch

if TYPE_CHECKING:
    from quantglow.codegen.llvm.isa.target import Target


def plan_program(
    graph: Graph,
    target: Target | None,
    seconds: dict[str, float] | None = None,
    donations: Sequence[Donation] = (),
    schedule: str = FAST,
    *,
    unsigned: bool = True,
) -> PlannedProgram:
    """The planned program of a graph for a target, or for the reference backend and other code
    generators.

    The target decides whether int8 activations are stored as uint8, whether weights may be stored
    twice, and the slack after buffers; without one ``unsigned`` decides the first.
    ``schedule``: how the order of execution is found, see ``memory.schedule``.
    """
    unsigned = unsigned if target is None else target.isa.unsigned_activations
    small = target is not None and target.saves_code
    slack_nbytes = 0 if target is None else target.isa.slack_nbytes
    with debug.time_stage("lower", seconds):
        lowered = lower(graph, unsigned=unsigned, small=small)
    debug.dump_ir("lower", lowered)
    with debug.time_stage("plan", seconds):
        generated = partial(
            generate_by_node, lowered, slack_nbytes=slack_nbytes, donations=donations
        )
        arrangement = arrange_program(lowered, generated, schedule)
        if debug.verifying():
            verify_program(arrangement.program)
    debug.dump_ir("program", arrangement.program)
    debug.log(1, str(arrangement.plan))
    return PlannedProgram(lowered, arrangement.program, arrangement.plan)


def batch_piece(graph: Graph, planned: PlannedProgram, threads: int) -> tuple[Graph, int]:
    """The graph to compile and the number of its runs; the program belongs to the whole."""
    batch = batch_size(graph)
    samples = 1 if batch is None else max(1, int(batch))
    pieces = pieces_for(samples, planned.traffic, threads)
    part = split_batch(graph, pieces) if pieces > 1 else None
    return (graph, 1) if part is None else (part, pieces)
