"""Loops: every stage keeps the interpreter's result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.codegen.llvm.targets import resolve
from quantglow.export.onnx.model import export_onnx
from quantglow.interpreter import interpret
from quantglow.interpreter.program import ReferenceExecutable
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.text import parse_graph, print_graph, text_constants
from quantglow.ir.program import text
from quantglow.ir.program.verify import verify_program
from quantglow.memory.planner import plan_memory
from quantglow.memory.schedule import schedule
from quantglow.runtime.native.compilation import compile_program
from quantglow.transforms import float as passes
from quantglow.transforms.lowering import lower
from quantglow.transforms.program.generate import generate
from quantglow.transforms.program.sharing import optimize_program
from tests.generators.loops import loop_graphs
from tests.matrix.harness import TARGETS
from tests.support.builder import assert_same_function
from tests.support.effort import expensive, moderate
from tests.support.equality import assert_equal_values
from tests.support.feeds import feeds_of
from tests.support.same import same_program
from tests.unit.importer.onnx.onnx_models import by_onnxruntime


@pytest.mark.slow
@given(graph=loop_graphs())
def test_a_graph_is_read_as_it_was_written(graph: Graph) -> None:
    read = parse_graph(print_graph(graph), text_constants(graph))
    assert print_graph(read) == print_graph(graph)
    assert_same_function(graph, read)


@given(graph=loop_graphs())
@moderate
def test_passes_keep_the_function(graph: Graph) -> None:
    assert_same_function(graph, passes.optimize(graph))


@given(graph=loop_graphs(), scheduled=st.booleans(), shared=st.booleans())
@moderate
def test_programs_compute_what_their_graph_means(
    graph: Graph, scheduled: bool, shared: bool
) -> None:
    lowered = lower(graph)
    program = generate(lowered, schedule(lowered) if scheduled else None, slack_nbytes=64)
    program = optimize_program(program) if shared else program
    verify_program(program)
    assert same_program(text.parse_program(str(program), text.text_constants(program)), program)
    feeds = feeds_of(graph)
    executable = ReferenceExecutable(program, plan_memory(program)).run(feeds)
    assert_equal_values(executable, interpret(graph, feeds))


@given(graph=loop_graphs(), name=st.sampled_from(TARGETS), threads=st.integers(1, 3))
@expensive
def test_compiled_programs_do_so_every_time(graph: Graph, name: str, threads: int) -> None:
    lowered, feeds = lower(graph), feeds_of(graph)
    program = optimize_program(generate(lowered, schedule(lowered), slack_nbytes=64))
    built = compile_program(program, plan_memory(program), resolve(name), threads)
    first, second = built.run(feeds), built.run(feeds)
    assert [x.tobytes() for x in first] == [x.tobytes() for x in second]
    assert_equal_values(first, interpret(graph, feeds))


@pytest.mark.slow
@given(graph=loop_graphs())
@moderate
def test_onnxruntime_agrees_on_the_exported_loop(graph: Graph) -> None:
    feeds = feeds_of(graph)
    assert_equal_values(by_onnxruntime(export_onnx(graph), feeds), interpret(graph, feeds))
