"""Executables: outputs of the caller, memory of the caller, times of calls."""

from __future__ import annotations

import numpy as np

from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Constant, Conv, Input, Pad
from quantglow.ir.types import f32
from quantglow.memory.planner import plan_memory
from quantglow.runtime.native.buffers import SHARED_NBYTES, Constants, aligned_bytes
from quantglow.runtime.native.compilation import compile_program
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.support.arrays import Array
from quantglow.transforms.lowering import lower
from quantglow.transforms.program.generate import generate

FEEDS = {"x": np.arange(4 * 5 * 3, dtype=np.float32).reshape(1, 4, 5, 3)}


def executable(asked: list[int] | None = None) -> LlvmExecutable:
    """A Conv on a padded input; ``asked`` gathers what memory is allocated."""
    x = Input(name="x", tensor=f32(1, 4, 5, 3))
    padded = Pad(name="p", x=x, before=(0, 1, 1, 0), after=(0, 1, 1, 0))
    weights = np.ones((3, 3, 3, 7), np.float32)
    w, b = Constant(name="w", value=weights), Constant(name="b", value=np.zeros(7, np.float32))
    conv = Conv(name="y", x=padded, w=w, b=b)
    target = resolve("native")
    lowered = lower(Graph((x,), (("out", conv),)))
    program = generate(lowered, slack_nbytes=target.isa.slack_nbytes)

    def allocate(nbytes: int) -> Array:
        if asked is not None:
            asked.append(nbytes)
        return aligned_bytes(nbytes)

    return compile_program(program, plan_memory(program), target, allocate=allocate)


def test_outputs_are_written_where_the_caller_wants_them() -> None:
    compiled = executable()
    mine = compiled.new_outputs()
    (returned,) = compiled.run(FEEDS, mine)
    assert returned is mine[0]
    np.testing.assert_array_equal(returned, compiled.run(FEEDS)[0])


def test_arena_and_constants_come_from_the_allocator() -> None:
    asked: list[int] = []
    compiled = executable(asked)
    compiled.run(FEEDS)
    program = compiled.program
    arena_nbytes = program.arena_nbytes + program.target.isa.slack_nbytes
    assert sorted(asked) == sorted([arena_nbytes, *(array.nbytes for array in program.constants)])


def test_own_memory_is_aligned() -> None:
    memory = aligned_bytes(100)
    assert memory.nbytes == 100
    assert memory.ctypes.data % 64 == 0


def test_constants_end_with_the_slack_of_the_target() -> None:
    """Also large ones, which programs of several targets share only where the slack is equal."""
    array = np.ones(2 * SHARED_NBYTES, np.uint8)
    for slack_nbytes in (64, 128):
        copy = Constants(aligned_bytes, slack_nbytes, shared=True).copy(array)
        assert copy.tolist() == [1] * array.nbytes + [0] * slack_nbytes


def test_profiled_calls_name_every_step_and_count_its_products() -> None:
    times = executable().profile_calls(FEEDS, repeats=3)
    assert [(t.name, t.op, t.macs) for t in times if t.op == "Conv"] == [
        ("y", "Conv", 4 * 5 * 7 * 27)
    ]
    assert all(t.seconds >= 0 and t.nbytes > 0 for t in times)


def test_profiling_leaves_results_unchanged() -> None:
    compiled = executable()
    (before,) = compiled.run(FEEDS)
    compiled.profile_calls(FEEDS, repeats=2)
    np.testing.assert_array_equal(compiled.run(FEEDS)[0], before)
