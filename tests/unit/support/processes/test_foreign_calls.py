"""Ctrl-C ends what foreign libraries compute, in the main thread and in helpers."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

import quantglow as qg
from quantglow.support.processes.interrupts import PATIENCE, endable
from quantglow.support.processes.workers import each, side_by_side

SOON = 0.3
"""Seconds after which the tests press Ctrl-C; by then the call has begun."""


@contextmanager
def ctrl_c(presses: int = 1) -> Iterator[None]:
    """Interrupt the main thread inside the block, which must end within a second."""
    press = (threading.main_thread().ident, signal.SIGINT)
    for count in range(1, presses + 1):
        threading.Timer(SOON * count, signal.pthread_kill, press).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        yield
    assert time.monotonic() - begun < SOON * presses + PATIENCE + 1


def loop(trips: int | None = None) -> onnx.ModelProto:
    """``y = x`` doubled ``n`` times, which is an input or a constant."""
    value = helper.make_tensor_value_info
    x, y, v, w = (value(name, TensorProto.FLOAT, [4]) for name in "xyvw")
    i, n = (value(name, TensorProto.INT64, []) for name in "in")
    go, on = (value(name, TensorProto.BOOL, []) for name in ("go", "on"))
    steps = [node("Identity", ["go"], ["on"]), node("Add", ["v", "v"], ["w"])]
    body = helper.make_graph(steps, "body", [i, go, v], [on, w])
    inputs, constants = ([x, n], []) if trips is None else ([x], [constant("n", trips)])
    nodes = [node("Loop", ["n", "", "x"], ["y"], body=body)]
    graph = helper.make_graph(nodes, "g", inputs, [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def constant(name: str, value: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(value), name)


def times(n: int) -> dict[str, np.ndarray]:
    return {"x": np.ones(4, np.float32), "n": np.array(n)}


Run = Callable[[dict[str, np.ndarray]], object]


def interpreted() -> Run:
    graph = qg.import_model(loop(), fallback=True)
    return lambda feeds: qg.interpret(graph, feeds)


def compiled() -> Run:
    model = qg.compile(loop(), num_threads=1)
    return lambda feeds: model.run(None, feeds)


def known() -> Run:
    """The number of trips stands in the model."""
    models = {n: qg.compile(loop(n), num_threads=1) for n in (2, 2**31)}
    return lambda feeds: models[int(feeds["n"])].run(None, {"x": feeds["x"]})


def profiled() -> Run:
    """The first Ctrl-C asks to keep what there is after this sample."""
    graph = qg.import_model(loop(), fallback=True)
    return lambda feeds: qg.profile(graph, [feeds] * 4)


@pytest.mark.parametrize(
    ("prepare", "presses"), [(interpreted, 1), (compiled, 1), (known, 1), (profiled, 2)]
)
def test_ctrl_c_ends_an_endless_loop(prepare: Callable[[], Run], presses: int) -> None:
    run = prepare()
    run(times(2))
    with ctrl_c(presses):
        run(times(2**31))
    run(times(2))


def test_a_loop_that_ends_gives_its_value() -> None:
    (actual,) = qg.compile(loop(), num_threads=1).run(None, times(10))
    np.testing.assert_array_equal(actual, np.full(4, 2.0**10))


def test_errors_come_from_the_thread() -> None:
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        endable(fails, lambda: None)


def test_calls_of_helpers_end_with_the_block() -> None:
    """The main thread waits for its own item, helpers for theirs."""
    events = [threading.Event() for _ in range(4)]

    def wait(event: threading.Event) -> None:
        endable(event.wait, event.set)

    with ctrl_c(), side_by_side():
        each(wait, events)


def test_a_call_that_does_not_listen_is_left() -> None:
    with ctrl_c():
        endable(lambda: time.sleep(SOON + PATIENCE + 5), lambda: None)
