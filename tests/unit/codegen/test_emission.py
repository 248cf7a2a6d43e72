"""Emitted programs: all that a loader needs, for any target, without an address of this process."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.codegen.llvm.emission import EmittedProgram, MemoryRegion, emit_program
from quantglow.codegen.llvm.targets import LEVELS, level_target, resolve
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Add, Concat, Relu
from quantglow.memory.planner import plan_memory
from quantglow.runtime.native.buffers import aligned_bytes
from quantglow.runtime.native.compilation import load_program
from quantglow.transforms.lowering import lower
from quantglow.transforms.program.generate import generate
from tests.matrix.harness import SLACK_NBYTES
from tests.support.builder import Builder
from tests.support.feeds import feeds_of


def network() -> Graph:
    """Two layers, a value used twice and a Concat, so that every place has pointers."""
    b = Builder()
    x = b.gemm(b.input(2, 8), 8)
    y = b.gemm(b.make(Relu, x=x), 8)
    return b.graph(b.make(Concat, parts=(b.make(Add, x=x, y=y), y), axis=1), y)


def emitted(target: str) -> EmittedProgram:
    program = generate(lower(network()), slack_nbytes=SLACK_NBYTES)
    return emit_program(program, plan_memory(program), level_target(target))


@pytest.mark.parametrize("level", LEVELS)
def test_a_program_is_emitted_for_a_processor_that_is_not_here(level: str) -> None:
    program = emitted(level)
    assert all("define void @kernel(" in text for text in program.texts)


@pytest.mark.parametrize("level", LEVELS)
def test_pointers_stay_inside_of_their_places(level: str) -> None:
    program = emitted(level)
    sizes = {
        MemoryRegion.ARENA: [program.arena_nbytes],
        MemoryRegion.CONSTANT: [array.nbytes for array in program.constants],
        MemoryRegion.INPUT: [view.buffer.nbytes for _, view in program.inputs],
        MemoryRegion.OUTPUT: [view.buffer.nbytes for _, view in program.outputs],
    }
    actual = [pointer for call in program.calls for pointer in call.pointers]
    assert {pointer.place for pointer in actual} == sizes.keys()
    assert all(0 <= p.offset_bytes < sizes[p.place][p.index] for p in actual)


def test_emitting_twice_gives_the_same_program() -> None:
    one, other = emitted("avx2"), emitted("avx2")
    assert one.texts == other.texts
    assert [call.pointers for call in one.calls] == [call.pointers for call in other.calls]
    for a, b in zip(one.constants, other.constants, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_program_that_was_emitted_before_is_loaded_and_runs() -> None:
    graph = network()
    program = generate(lower(graph), slack_nbytes=SLACK_NBYTES)
    built = emit_program(program, plan_memory(program), resolve("native"), hold=owned)
    feeds = feeds_of(graph)
    actual = load_program(built, 1, aligned_bytes).run(feeds)
    for a, b in zip(actual, interpret(graph, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def owned(array: np.ndarray) -> np.ndarray:
    """A copy with the slack that kernels may read."""
    memory = aligned_bytes(array.nbytes + SLACK_NBYTES)
    memory[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memory
