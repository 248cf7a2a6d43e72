"""onnxruntime's own kernels answer what has no program, without Python."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime.capi.onnxruntime_pybind11_state
import pytest

import quantglow as qg
from quantglow import ep
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.support.errors import BackendError
from tests.support.plug_in import session
from tests.unit.ep.test_threads import network, picture
from tests.unit.importer.onnx.onnx_models import by_onnxruntime

INVALID = onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Programs are compiled when it is set."""
    event, compile_at = threading.Event(), FreeShapes.compile_at

    def wait(self: FreeShapes, feeds: Any) -> Any:
        assert event.wait(60)
        return compile_at(self, feeds)

    monkeypatch.setattr(FreeShapes, "compile_at", wait)
    yield event
    event.set()


def answered(opened: Any, model: Any, height: int) -> str:
    """The name of what answers a call, whose result is right."""
    before, x = ep.counts(), picture(1, height)
    (actual,) = opened.run(None, {"x": x})
    np.testing.assert_allclose(actual, by_onnxruntime(model, {"x": x})[0], rtol=1e-4, atol=1e-5)
    after = ep.counts()
    (way,) = (w for w in ("native", "python", "onnxruntime") if after[w] > before[w])
    return way


def wait_for(opened: Any, model: Any, height: int, way: str) -> None:
    """Call until something else answers."""
    for _ in range(600):
        if answered(opened, model, height) == way:
            return
        time.sleep(0.05)
    raise AssertionError(f"{way} never answers")


def test_a_new_shape_does_not_wait_for_its_program(gate: threading.Event) -> None:
    model = network("N")
    opened = session(model, optimize=False, while_compiling="onnxruntime")
    before = ep.counts()["prepares"]
    assert [answered(opened, model, height) for height in (8, 8, 9, 8)] == ["onnxruntime"] * 4
    assert ep.counts()["prepares"] == before + 2
    gate.set()
    compiled = qg.compile(model, num_threads=1)
    for height in (8, 9):
        wait_for(opened, model, height, "native")
        x = picture(2, height)
        opened.run(None, {"x": x})
        wait_for(opened, model, height, "native")
        np.testing.assert_array_equal(opened.run(None, {"x": x[:1]})[0], compiled(x[:1]))


def test_calls_wait_by_default() -> None:
    model = network("N")
    assert answered(session(model), model, 8) == "native"


def test_an_error_of_the_compiler_is_raised_once_it_is_there(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network("N")
    opened = session(model, while_compiling="onnxruntime")
    assert answered(opened, model, 8) == "onnxruntime"
    with monkeypatch.context() as patch:
        patch.setattr(FreeShapes, "_compile", lambda self, case: refuse())
        gate.set()
        with pytest.raises(INVALID, match="no code today"):
            wait_for(opened, model, 8, "native")
    assert answered(opened, model, 8) == "native"


def refuse() -> None:
    raise BackendError("no code today")


@pytest.mark.parametrize("words", [{}, {"while_compiling": "onnxruntime"}])
def test_shapes_that_quantglow_refuses_are_answered_without_python(words: dict[str, Any]) -> None:
    """No graph without rows is compiled."""
    model = network("N")
    opened = session(model, **words)
    x = picture(0, 8)
    for _ in range(3):
        before = ep.counts()
        (actual,) = opened.run(None, {"x": x})
        assert actual.shape == (0, 8) and ep.counts()["python"] == before["python"]
    assert ep.counts()["onnxruntime"] > before["onnxruntime"]


def test_callers_get_right_answers_while_programs_come() -> None:
    model = network("N")
    sessions = [session(model, threads=2, while_compiling="onnxruntime") for _ in range(2)]
    cases = [picture(1 + n % 3, 8 + 4 * (n % 4), n) for n in range(12)]
    expected = [by_onnxruntime(model, {"x": x})[0] for x in cases]
    wrong: list[int] = []

    def work(first: int) -> None:
        for n in range(60):
            number = (first + n) % len(cases)
            (actual,) = sessions[n % 2].run(None, {"x": cases[number]})
            if not np.allclose(actual, expected[number], rtol=1e-4, atol=1e-5):
                wrong.append(number)

    callers = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong
