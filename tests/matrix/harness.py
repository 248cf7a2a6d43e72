"""Run one graph on every backend and compare with the interpreter."""

from __future__ import annotations

from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.runtime.executable import compile_program
from quantglow.backends.llvm.targets import LEVELS, level_target, resolve, runs_here
from quantglow.backends.reference import ReferenceExecutable
from quantglow.graph.graph import Graph
from quantglow.instr.generate import generate
from quantglow.instr.verify import verify_program
from quantglow.interpreter import interpret
from quantglow.lowering import lower
from quantglow.memory.planner import plan_memory
from quantglow.memory.schedule import schedule
from quantglow.memory.share import share_in_place
from quantglow.types import Array
from tests.support.equality import assert_equal_values

TARGETS = tuple(name for name in LEVELS if runs_here(name))
SLACK_NBYTES = max(level_target(name).isa.slack_nbytes for name in LEVELS)
"""Bytes after buffers that kernels of any target may read."""


def planned(graph: Graph, unsigned: bool = True):
    """The shared, verified and planned program of a graph; ``unsigned`` activations or signed."""
    lowered = lower(graph, unsigned=unsigned)
    program = generate(lowered, schedule(lowered), slack_nbytes=SLACK_NBYTES)
    program = share_in_place(program)
    verify_program(program)
    return program, plan_memory(program)


def on_llvm(
    graph: Graph, feeds: dict[str, Array], target: str | Target, threads: int = 1
) -> list[Array]:
    resolved = resolve(target) if isinstance(target, str) else target
    program = planned(graph, resolved.isa.unsigned_activations)
    return compile_program(*program, resolved, threads).run(feeds)


def on_reference(graph: Graph, feeds: dict[str, Array]) -> list[Array]:
    return ReferenceExecutable(*planned(graph)).run(feeds)


def assert_agree(
    graph: Graph,
    feeds: dict[str, Array],
    target: str | Target,
    threads: int = 1,
    rtol: float = 2e-5,
) -> None:
    """Integers equal bit for bit, floats within ``rtol`` of the largest expected value."""
    expected = interpret(graph, feeds)
    assert_equal_values(on_llvm(graph, feeds, target, threads), expected, rtol, atol=rtol)
