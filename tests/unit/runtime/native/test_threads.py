"""The run-time system: any number of threads, callers and processes gives the same result."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

from quantglow.codegen.llvm.targets import resolve
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Constant, Conv, Input, MatMul
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType, f32
from quantglow.memory.planning import plan_program
from quantglow.runtime.native import executable as executables
from quantglow.runtime.native.compilation import compile_program
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.native.threads import ThreadPool
from quantglow.support.errors import BackendError
from tests.unit.forking import exit_code_of_child


@pytest.fixture(autouse=True)
def however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads take part in programs of any size."""
    monkeypatch.setattr(executables, "SERIAL_PROGRAM", 0.0)


def network(seed: int = 0) -> tuple[Graph, dict[str, np.ndarray]]:
    """Three convolutions with enough work to be shared."""
    rng = np.random.default_rng(seed)
    x = node = Input(name="x", tensor=f32(1, 24, 24, 16))
    for i in range(3):
        w = Constant(name=f"w{i}", value=rng.normal(size=(3, 3, 16, 16)).astype(np.float32) / 12)
        node = Conv(name=f"conv{i}", x=node, w=w, low=0.0)
    feeds = {"x": rng.normal(size=(1, 24, 24, 16)).astype(np.float32)}
    return Graph((x,), (("y", node),)), feeds


def compiled(graph: Graph, threads: int) -> LlvmExecutable:
    planned = plan_program(graph, resolve("native"))
    return compile_program(planned.program, planned.plan, resolve("native"), threads)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_any_number_of_threads_gives_the_same_floats(threads: int) -> None:
    graph, feeds = network()
    alone = compiled(graph, 1).run(feeds)[0]
    executable = compiled(graph, threads)
    for _ in range(200):
        np.testing.assert_array_equal(executable.run(feeds)[0], alone)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_rows_of_calls_on_one_thread_are_waited_for(
    threads: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(
        executables, "split_chunks", lambda items, *_: rng.choice([0, 4], len(items))
    )
    graph, feeds = chain(30)
    (expected,) = interpret(graph, feeds)
    executable = compiled(graph, threads)
    for _ in range(100):
        np.testing.assert_array_equal(executable.run(feeds)[0], expected)


def chain(length: int) -> tuple[Graph, dict[str, np.ndarray]]:
    """Short calls that no pass joins, each of which reads all of the one before."""
    kind = ElementType(DType.I8, QuantParams((1 / 64,), (0,)))
    x = node = Input(name="x", tensor=TensorType(DType.I8, (8, 8), kind.quant))
    for i in range(length):
        node = MatMul(name=f"square{i}", x=node, y=node, out=kind)
    values = np.random.default_rng(0).integers(-128, 128, (8, 8)).astype(np.int8)
    return Graph((x,), (("y", node),)), {"x": values}


@pytest.mark.parametrize("threads", [1, 2])
def test_several_callers_do_not_disturb_each_other(threads: int) -> None:
    graph, _ = network()
    executable = compiled(graph, threads)
    feeds = [network(seed)[1] for seed in range(4)]
    expected = [executable.run(f)[0] for f in feeds]
    wrong: list[int] = []

    def call(index: int) -> None:
        for _ in range(100):
            if not np.array_equal(executable.run(feeds[index])[0], expected[index]):
                wrong.append(index)

    callers = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_models_of_different_length_share_a_pool() -> None:
    graph, feeds = network()
    short = Graph(graph.inputs, (("y", graph.by_name("conv0")),))
    models = [(compiled(g, 2), interpret(g, feeds)[0]) for g in (graph, short)]
    for _ in range(100):
        for executable, want in models:
            np.testing.assert_allclose(executable.run(feeds)[0], want, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_gets_workers_of_its_own() -> None:
    graph, feeds = network()
    executable = compiled(graph, 2)
    expected = executable.run(feeds)[0]

    def is_same() -> bool:
        return all(np.array_equal(executable.run(feeds)[0], expected) for _ in range(20))

    assert exit_code_of_child(is_same) == 0


def test_a_tiny_program_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = network()
    work = compiled(graph, 1).program.work
    monkeypatch.setattr(executables, "SERIAL_PROGRAM", work)
    assert compiled(graph, 2).crew == 2
    monkeypatch.setattr(executables, "SERIAL_PROGRAM", work + 1)
    assert compiled(graph, 2).crew == 1


def test_workers_that_the_system_does_not_start_are_a_typed_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def limited(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    target = resolve("native")
    ThreadPool(target, 2).close()  # its kernels are loaded before threads run out
    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(BackendError, match=r"starts 2 of 4 worker threads.*num_threads=3"):
        ThreadPool(target, 5)
    assert not any(thread.is_alive() for thread in started)


LEAVING = """
import atexit, threading

def workers():
    return [t.name for t in threading.enumerate() if t.name.startswith("quantglow")]

atexit.register(lambda: print(len(workers()), "at the end"))
import numpy as np
from quantglow.runtime.native.threads import run_table
from quantglow.codegen.llvm.targets import resolve
run_table(resolve("LEVEL"), 3, np.zeros((0, 4), np.uint64))
print(len(workers()), "at work")
"""


@pytest.mark.parametrize("level", ["native", "portable"])
def test_workers_end_before_the_interpreter_frees_what_they_look_at(level: str) -> None:
    command = [sys.executable, "-c", LEAVING.replace("LEVEL", level)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["2 at work", "0 at the end"]
