"""One object runs a whole program, with the interpreter's integers and without libraries."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.codegen.llvm.compiler import link_by_llvm
from quantglow.codegen.llvm.emission import emit_program
from quantglow.codegen.llvm.emitted import EmittedProgram
from quantglow.codegen.llvm.targets import LEVELS, level_target, runs_here
from quantglow.export.bundle import run_functions as part_function
from quantglow.export.bundle.constants import Placement
from quantglow.export.bundle.program_object import ProgramObject, program_object
from quantglow.export.bundle.run_functions import MISALIGNED, NULL, OK, OUT_OF_RANGE
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Gather
from quantglow.ir.types import DType, TensorType, f32
from quantglow.memory.planning import plan_program
from quantglow.runtime.native.buffers import aligned_bytes
from quantglow.runtime.programs.build import Compiler
from quantglow.support.arrays import Array
from tests.generators.onnx_models import models
from tests.support.combinations import mark_slow
from tests.support.small_network import small_model, small_samples

HERE = [level for level in LEVELS if runs_here(level)]
OBSERVER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)


def emitted(graph: Graph, level: str = "portable") -> EmittedProgram:
    target = level_target(level)
    planned = plan_program(graph, target)
    return emit_program(planned.program, planned.plan, target)


def function(built: ProgramObject, symbol: str) -> Any:
    addresses = link_by_llvm(level_target("portable"), {symbol: built.code})
    return ctypes.CFUNCTYPE(ctypes.c_int)(addresses[symbol])


def pointers(arrays: list[Array]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def run(graph: Graph, level: str, feeds: list[Array]) -> tuple[int, list[Array]]:
    object_file = program_object("net", emitted(graph, level))
    outputs = [np.full(n.type.shape, 77, n.type.dtype.numpy) for _, n in graph.outputs]
    arena = aligned_bytes(object_file.arena_nbytes)
    ends = pointers(feeds), pointers(outputs)
    result = function(object_file, "net_run")(ctypes.c_void_p(arena.ctypes.data), *ends)
    return int(result), outputs


@pytest.fixture(scope="module")
def int8() -> Graph:
    compiled = qg.quantize_and_compile(small_model(), small_samples(), progress=False)
    return compiled.graph


def assert_runs(graph: Graph, level: str, feeds: dict[str, Array]) -> None:
    """An object and the program in this process compute the same bytes."""
    result, actual = run(graph, level, [feeds[node.name] for node in graph.inputs])
    assert result == OK
    expected = Compiler.of(level, 1).compile(graph).executable.run(feeds)
    for one, other in zip(actual, expected, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.slow_variants
@pytest.mark.parametrize("level", HERE)
def test_an_object_computes_the_interpreters_integers(int8: Graph, level: str) -> None:
    feeds = {int8.inputs[0].name: small_samples()[0]}
    result, actual = run(int8, level, list(feeds.values()))
    assert result == OK
    for one, expected in zip(actual, qg.interpret(int8, feeds), strict=True):
        np.testing.assert_array_equal(one, expected)


PLAIN = (0, 2, 3, 4, 7, 8)
"""Seeds of models that are one program."""

LOOPS = (1, 16, 78, 761)
"""Seeds of models with loops of known trips, ended by conditions, and two in a row."""
SEEDS = mark_slow([*PLAIN, *LOOPS], {*PLAIN[:2], *LOOPS[:2]})


@pytest.mark.slow_variants
@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_graphs_run_as_in_this_process(seed: int) -> None:
    case = models.drawn(seed)
    graph = qg.import_model(case.model)
    assert Compiler.of("portable", 1).is_one_program(graph)
    assert_runs(graph, "portable", dict(case.samples[0]))


def run_by_threads(graph: Graph, feeds: list[Array], count: int) -> list[Array]:
    """The outputs of one run that several threads share."""
    object_file = program_object("net", emitted(graph))
    outputs = [np.full(n.type.shape, 77, n.type.dtype.numpy) for _, n in graph.outputs]
    arena = aligned_bytes(object_file.arena_nbytes)
    waiting = threading.Barrier(count, timeout=100)
    barrier = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: waiting.wait() and None)
    inputs = ctypes.c_void_p(arena.ctypes.data), pointers(feeds), pointers(outputs)
    part = function(object_file, "net_run_part")
    with ThreadPoolExecutor(count) as threads:
        runs = [threads.submit(part, *inputs, item, count, barrier, None) for item in range(count)]
        assert [run.result() for run in runs] == [OK] * count
    return outputs


@pytest.mark.slow_variants
@pytest.mark.parametrize("seed", SEEDS)
def test_threads_share_runs_of_drawn_graphs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops and their conditions, too: no thread runs ahead."""
    monkeypatch.setattr(part_function, "LEAST_WORK", 0)
    case = models.drawn(seed)
    graph, feeds = qg.import_model(case.model), dict(case.samples[0])
    actual = run_by_threads(graph, [feeds[node.name] for node in graph.inputs], 3)
    expected = Compiler.of("portable", 1).compile(graph).executable.run(feeds)
    for one, other in zip(actual, expected, strict=True):
        assert one.tobytes() == other.tobytes()


def gathered() -> Graph:
    x = Input(name="x", tensor=f32(5, 3))
    rows = Input(name="rows", tensor=TensorType(DType.I64, (2,)))
    return Graph((x, rows), (("y", Gather(name="y", x=x, indices=rows, axis=0)),))


@pytest.mark.slow
def test_an_index_out_of_range_is_a_result() -> None:
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    assert run(gathered(), "portable", [x, np.array([4, 1])])[0] == OK
    assert run(gathered(), "portable", [x, np.array([4, 5])])[0] == OUT_OF_RANGE


@pytest.mark.slow
def test_memory_of_the_caller_is_checked(int8: Graph) -> None:
    object_file = program_object("net", emitted(int8))
    call = function(object_file, "net_run")
    x = small_samples()[0]
    outputs = [np.empty(n.type.shape, np.float32) for _, n in int8.outputs]
    inputs, arena = pointers([x]), aligned_bytes(object_file.arena_nbytes + 1).ctypes.data
    assert call(ctypes.c_void_p(arena), inputs, pointers(outputs)) == OK
    assert call(None, inputs, pointers(outputs)) == NULL
    assert call(ctypes.c_void_p(arena), (ctypes.c_void_p * 1)(), pointers(outputs)) == NULL
    assert call(ctypes.c_void_p(arena + 1), inputs, pointers(outputs)) == MISALIGNED
    moved = (ctypes.c_void_p * 1)(x.ctypes.data + 1)
    assert call(ctypes.c_void_p(arena), moved, pointers(outputs)) == MISALIGNED


@pytest.mark.slow
def test_constants_may_lie_in_memory_of_the_caller(int8: Graph) -> None:
    object_file = program_object("net", emitted(int8), Placement.BIN)
    weights, arena = (
        aligned_bytes(object_file.weights.nbytes),
        aligned_bytes(object_file.arena_nbytes),
    )
    weights[:] = np.frombuffer(b"".join(object_file.weights.pieces()), np.uint8)
    feeds = {int8.inputs[0].name: small_samples()[0]}
    outputs = [np.empty(n.type.shape, np.float32) for _, n in int8.outputs]
    memory = [ctypes.c_void_p(array.ctypes.data) for array in (arena, weights)]
    assert (
        function(object_file, "net_run")(*memory, pointers(list(feeds.values())), pointers(outputs))
        == OK
    )
    for one, expected in zip(outputs, qg.interpret(int8, feeds), strict=True):
        np.testing.assert_array_equal(one, expected)


@pytest.mark.slow
def test_an_observer_sees_every_kernel(int8: Graph) -> None:
    object_file = program_object("net", emitted(int8))
    observed: list[tuple[int, int]] = []
    observer = OBSERVER(lambda user, call, phase: observed.append((call, phase)))
    arena = aligned_bytes(object_file.arena_nbytes)
    outputs = [np.empty(n.type.shape, np.float32) for _, n in int8.outputs]
    ends = pointers([small_samples()[0]]), pointers(outputs)
    call = function(object_file, "net_run_observed")
    assert call(ctypes.c_void_p(arena.ctypes.data), *ends, observer, None) == OK
    assert observed == [(k, phase) for k in range(len(object_file.kernels)) for phase in (0, 1)]


def test_the_stack_is_known(int8: Graph) -> None:
    object_file = program_object("net", emitted(int8))
    assert 0 < object_file.stack.most_nbytes < 4096


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "level", mark_slow(LEVELS, {"amx-int8", "i8mm", "rv64gcv", "wasm32", "cortex-m0plus"})
)
def test_each_target_has_objects(int8: Graph, level: str) -> None:
    object_file = program_object("net", emitted(int8, level))
    assert object_file.weights.marker not in object_file.code
