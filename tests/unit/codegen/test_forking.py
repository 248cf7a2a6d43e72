"""A forked process continues, and so does its child, whatever other threads did at that moment."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from onnx import helper

import quantglow as qg
from quantglow.codegen.llvm.cache import ObjectCache
from quantglow.codegen.llvm.targets import resolve
from quantglow.ort.session import Session
from quantglow.runtime.jit.library import KernelLibrary
from quantglow.runtime.native import buffers as huge_pages
from quantglow.runtime.native import threads
from tests.stress.forks import compiles
from tests.unit.forking import exit_code_of_child
from tests.unit.importer.onnx.onnx_models import floats, model_of

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

SECONDS = 120
"""Time limit in seconds of calls that would hang otherwise."""


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., threading.Event]]:
    """Let another thread call a slow function of a module; the event says that it has begun."""
    started: list[threading.Thread] = []

    def start(owner: Any, name: str, work: Callable[[], object]) -> threading.Event:
        begun, original, parent = threading.Event(), getattr(owner, name), os.getpid()

        def slow(*arguments: Any) -> Any:
            if os.getpid() == parent and not begun.is_set():
                begun.set()
                threading.Event().wait(0.3)
            return original(*arguments)

        monkeypatch.setattr(owner, name, slow)
        started.append(threading.Thread(target=work))
        started[-1].start()
        assert begun.wait(SECONDS)
        return begun

    yield start
    for thread in started:
        thread.join()


@pytest.mark.slow_variants
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_processes_of_multiprocessing_compile_and_run(method: str) -> None:
    assert compiles(101)
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map_async(compiles, [102, 103, 104]).get(SECONDS) == [True] * 3


def test_a_thread_may_fork() -> None:
    codes: list[int] = []
    thread = threading.Thread(
        target=lambda: codes.append(exit_code_of_child(lambda: compiles(105, "x86-64")))
    )
    thread.start()
    thread.join(SECONDS)
    assert codes == [0]


def test_a_library_may_be_made_while_the_process_forks() -> None:
    def fork() -> int:
        """The child's exit code; the library exists between what happens before and after."""
        recorded: list[KernelLibrary] = []

        def make() -> None:
            recorded.append(KernelLibrary(resolve("x86-64"), ObjectCache(None)))

        hooks["make"] = make
        try:
            return exit_code_of_child(lambda: bool(recorded[0].load([text()])))
        finally:
            del hooks["make"]

    assert fork() == 0
    assert fork() == 0


hooks: dict[str, Callable[[], None]] = {}
os.register_at_fork(before=lambda: hooks.get("make", lambda: None)())


def text() -> str:
    """A kernel that does nothing."""
    return "define void @kernel(ptr %args, i64 %begin, i64 %end) {\n  ret void\n}\n"


def test_a_child_forked_while_memory_is_allocated_allocates(slowly: Any) -> None:
    allocate = huge_pages.LargePages()
    slowly(huge_pages, "map_bytes", lambda: allocate(huge_pages.FIRST_NBYTES + 1))
    assert exit_code_of_child(lambda: allocate(1000).size > 0) == 0


def test_a_child_forked_while_workers_start_starts_its_own(slowly: Any) -> None:
    product = helper.make_node("MatMul", ["x", "x"], ["y"])
    x = floats(700, 700)
    model = model_of([product], {"x": x}, ["y"])
    expected = qg.compile(model, num_threads=1)(x)
    compiled = qg.compile(model, num_threads=7)
    slowly(threads, "ThreadPool", lambda: compiled(x))
    assert exit_code_of_child(lambda: np.array_equal(compiled(x), expected)) == 0


def test_a_child_forked_while_onnxruntime_runs_runs_it_too() -> None:
    model = model_of([relu()], {"x": floats(2, 3)}, ["y"])
    session = Session(model.SerializeToString(), 2)
    parents = session.session
    feeds = {"x": floats(2, 3)}
    assert exit_code_of_child(lambda: bool((session.run(feeds)[0] >= 0).all())) == 0
    assert exit_code_of_child(lambda: session.session is not parents) == 0
    assert session.session is parents


def test_a_child_frees_sessions_of_its_parent_without_their_threads() -> None:
    model = model_of([relu()], {"x": floats(2, 3)}, ["y"])
    sessions = [Session(model.SerializeToString(), 2)]
    time.sleep(0.2)  # its second thread waits now, no longer ready to go on
    assert exit_code_of_child(lambda: bool(sessions.pop().input_names)) == 0


def relu() -> Any:
    return helper.make_node("Relu", ["x"], ["y"])
