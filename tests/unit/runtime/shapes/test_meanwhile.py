"""onnxruntime answers while the program of a new shape is compiled, if the user asks for it."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import quantglow as qg
from quantglow.api.models import other_ways
from quantglow.api.models.other_ways import WholeModel
from quantglow.ir.graph.family import Case
from quantglow.runtime.programs.answers import MOST_CASES, AnswerLog, Answers
from quantglow.runtime.shapes import background as meanwhile
from quantglow.runtime.shapes.background import THREAD
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.support.arrays import Array
from quantglow.support.processes import threads as background
from tests.support.detector import detector, free_detector
from tests.support.ending import outcome
from tests.support.free_network import SHAPES, free_model, image
from tests.unit.forking import exit_code_of_child
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats, model_of
from tests.unit.runtime.shapes.test_deciding_values import rate_model
from tests.unit.runtime.test_fallback import positions

FIRST, NEW = (1, 3, 8, 8), (2, 3, 13, 18)
ALL = [*SHAPES, NEW, (1, 3, 9, 21)]
MODEL = free_model()
FILE = "int8.qgm"

Check = Callable[[list[Array], tuple[int, ...]], bool]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an int8 model."""
    folder = tmp_path_factory.mktemp("meanwhile")
    samples = [image(FIRST, seed) for seed in range(4)]
    qg.quantize_and_compile(MODEL, samples, num_threads=1, progress=False).save(folder / FILE)
    return folder


@pytest.fixture
def compiled(folder: Path) -> Any:
    return qg.load(folder / FILE, num_threads=1, while_compiling="onnxruntime")


class Gate:
    """Holds the thread that compiles until it is opened; ``error``: what compiling raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.error: Exception | None = None
        self.tries = 0
        usual = FreeShapes.compile_at

        def held(programs: FreeShapes, feeds: Any) -> Any:
            if threading.current_thread().name == THREAD:
                assert self.opened.wait(60)
            self.tries += 1
            if self.error is not None:
                raise self.error
            return usual(programs, feeds)

        monkeypatch.setattr(FreeShapes, "compile_at", held)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(meanwhile, "QUICK_SECONDS", 0.0)
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()
    assert threads_end()


def threads_end() -> bool:
    """Whether no thread compiles any more."""
    return until(lambda: all(thread.name != THREAD for thread in threading.enumerate()))


def until(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def is_ready(model: Any) -> bool:
    """Whether nothing is being compiled."""
    return all(calls.state != "compiling" for calls in model.answers)


@pytest.fixture(scope="module")
def is_int8(folder: Path) -> Check:
    """Whether results are those of the int8 program."""
    model = qg.load(folder / FILE, num_threads=1)
    expected = {shape: model(image(shape)) for shape in ALL}
    return lambda actual, shape: all(map(np.array_equal, actual, expected[shape]))


@pytest.fixture(scope="module")
def is_float(folder: Path) -> Check:
    """Whether results are those of the float model in the file, which is near the exact one."""
    programs: Any = qg.load(folder / FILE, num_threads=1).specialisations
    expected = {s: programs.in_onnxruntime(case_of(s)).run({"x": image(s)}) for s in ALL}
    for shape, outputs in expected.items():
        for value, exact in zip(outputs, by_onnxruntime(MODEL, {"x": image(shape)}), strict=True):
            assert np.abs(value - exact).max() < 0.05 * np.abs(exact).max()
    return lambda value, shape: all(map(np.array_equal, value, expected[shape]))


@pytest.mark.slow
def test_every_answer_is_that_of_onnxruntime_or_of_the_program(
    compiled: Any, is_int8: Check, is_float: Check
) -> None:
    """From many threads, at many shapes."""

    def answer(number: int) -> tuple[bool, bool]:
        shape = ALL[number % len(ALL)]
        compiled_model = compiled(image(shape))
        return is_int8(compiled_model, shape), is_float(compiled_model, shape)

    with ThreadPoolExecutor(6) as pool:
        kinds = list(pool.map(answer, range(60)))
    assert set(kinds) <= {(True, False), (False, True)}
    assert sum(calls.onnxruntime for calls in compiled.answers) == kinds.count((False, True))
    assert sum(calls.program for calls in compiled.answers) == kinds.count((True, False))
    assert threads_end()
    assert all(is_int8(compiled(image(shape)), shape) for shape in ALL)


def case_of(shape: tuple[int, ...]) -> Any:
    return Case.of({"x": shape})


def test_it_answers_until_the_program_is_ready(
    compiled: Any, gate: Gate, is_int8: Check, is_float: Check
) -> None:
    x = image(NEW)
    assert is_float(compiled(x), NEW) and is_float(compiled(x), NEW)
    assert compiled.answers == (Answers("x [2, 3, 13, 18]", 2, 0, "compiling"),)
    assert is_int8(compiled(image(FIRST)), FIRST)
    gate.opened.set()
    assert until(lambda: is_ready(compiled))
    assert is_int8(compiled(x), NEW)
    assert compiled.answers[0] == Answers("x [2, 3, 13, 18]", 2, 1, "ready")
    (row,) = [p for p in compiled.report.programs if p.program == "while it is compiled"]
    assert row.elsewhere == "2 calls of the whole model in onnxruntime"


def test_an_int8_model_of_this_process_answers_with_exact_weights(gate: Gate) -> None:
    gate.opened.set()
    samples = [image(FIRST, seed) for seed in range(4)]
    options: dict[str, Any] = {"num_threads": 1, "progress": False}
    model = qg.quantize_and_compile(MODEL, samples, **options, while_compiling="onnxruntime")
    assert model.answers == ()
    gate.opened.clear()
    x = image(NEW)
    for value, expected in zip(model(x), by_onnxruntime(MODEL, {"x": x}), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


def test_accuracy_is_that_of_the_program(gate: Gate) -> None:
    """Inside ``quantize_and_compile`` calls wait."""
    gate.opened.set()
    observed: list[Any] = []

    def figure(model: Any) -> float:
        model(image(NEW))
        observed.append(model.answers)
        return 1.0

    samples = [image(FIRST, seed) for seed in range(4)]
    qg.quantize_and_compile(
        MODEL,
        samples,
        max_drop=0.5,
        validation_fn=figure,
        num_threads=1,
        progress=False,
        while_compiling="onnxruntime",
    )
    assert observed and not any(observed)


def test_an_error_of_the_compiler_reaches_the_next_call(
    compiled: Any, gate: Gate, is_float: Check
) -> None:
    x = image(NEW)
    assert is_float(compiled(x), NEW)
    gate.error = qg.BackendError("no kernel")
    gate.opened.set()
    assert until(lambda: is_ready(compiled))
    assert compiled.answers[0].state == "failed"
    for tries in (1, 2, 3):  # the first one is that of the thread, later calls wait
        with pytest.raises(qg.BackendError, match="no kernel"):
            compiled(x)
        assert gate.tries == tries
    gate.error = None
    compiled(x)
    assert compiled.answers[0] == Answers("x [2, 3, 13, 18]", 1, 1, "ready")


def test_an_error_that_comes_at_once_is_raised_at_once(
    compiled: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meanwhile, "QUICK_SECONDS", 60.0)
    gate.error = qg.BackendError("no kernel")
    gate.opened.set()
    for tries in (1, 2):
        with pytest.raises(qg.BackendError, match="no kernel"):
            compiled(image(NEW))
        assert gate.tries == tries


def test_wrong_feeds_are_an_error_of_the_call(compiled: Any, gate: Gate) -> None:
    for wrong in (image((1, 4, 8, 9)), image(NEW).astype(np.int32), image((3, 8, 9))):
        with pytest.raises(qg.InputError):
            compiled(wrong)
    with pytest.raises(qg.InputError):
        compiled.run(None, {"z": image(NEW)})
    assert compiled.answers == ()


def test_calls_wait_if_onnxruntime_does_not_take_the_model(
    compiled: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch, is_int8: Check
) -> None:
    def refuse(model: object, case: object) -> None:
        raise qg.FallbackError("no such operator")

    monkeypatch.setattr(WholeModel, "at", refuse)
    threading.Timer(0.1, gate.opened.set).start()
    assert is_int8(compiled(image(NEW)), NEW)
    assert compiled.answers == (Answers("x [2, 3, 13, 18]", 0, 1, "ready"),)


def test_no_call_loads_the_session(
    folder: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [image(FIRST, seed) for seed in range(4)]
    options: dict[str, Any] = {"num_threads": 1, "while_compiling": "onnxruntime"}
    gate.opened.set()
    models = [
        qg.load(folder / FILE, **options),
        qg.compile(MODEL, **options),
        qg.quantize_and_compile(MODEL, samples, **options, progress=False),
    ]
    gate.opened.clear()
    monkeypatch.setattr(
        other_ways, "open_session", lambda *operands: pytest.fail("a session was loaded")
    )
    for model in models:
        assert len(model(image(NEW))) == 2
        assert [calls.onnxruntime for calls in model.answers] == [1]


def test_calls_wait_if_no_thread_can_be_started(
    compiled: Any, monkeypatch: pytest.MonkeyPatch, is_int8: Check
) -> None:
    monkeypatch.setattr(background, "start", lambda name, work: None)
    assert is_int8(compiled(image(NEW)), NEW)


def test_values_that_decide_are_found_in_the_thread(gate: Gate) -> None:
    model = qg.compile(rate_model("N"), num_threads=1, while_compiling="onnxruntime")
    feeds = [{"x": floats(4, 6), "rate": np.array(rate)} for rate in (16, 8)]
    for _ in range(2):
        for value in feeds:
            (actual,) = model.run(None, value)
            np.testing.assert_allclose(actual, *by_onnxruntime(rate_model("N"), value), atol=1e-6)
        for array in (feeds[0]["x"], feeds[1]["x"]):
            array += 1  # the thread must not read them any more
        gate.opened.set()
        assert until(lambda: is_ready(model))
    assert all(calls.state == "ready" for calls in model.answers)


def columns_model() -> onnx.ModelProto:
    """The first ``n`` columns of x [N, M], of which nobody knows yet that ``n`` decides."""
    nodes = [
        onnx.helper.make_node("Slice", ["x", "start", "n", "axis"], ["s"]),
        onnx.helper.make_node("Relu", ["s"], ["y"]),
    ]
    known = [numpy_helper.from_array(np.array([i]), n) for i, n in enumerate(("start", "axis"))]
    model = model_of(nodes, {"x": floats(4, 6), "n": np.array([1])}, ["y"], known)
    for axis, name in enumerate("NM"):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    return model


def test_first_calls_at_once_get_the_programs_of_their_own_values() -> None:
    x = np.abs(floats(4, 6))
    for _ in range(10):
        model: Any = qg.compile(columns_model(), num_threads=1, while_compiling="onnxruntime")
        barrier = threading.Barrier(2)

        def first_call(n: int, model: Any = model, barrier: Any = barrier) -> Array:
            barrier.wait(60)
            (actual,) = model.run(None, {"x": x, "n": np.array([n])})
            return actual

        with ThreadPoolExecutor(2) as pool:
            for n, value in zip((2, 5), pool.map(first_call, (2, 5)), strict=True):
                np.testing.assert_array_equal(value, x[:, :n])
    assert threads_end()


def test_models_of_late_sizes_are_compiled_in_the_thread(gate: Gate) -> None:
    model = qg.compile(free_detector(), num_threads=1, while_compiling="onnxruntime")
    assert isinstance(model, qg.CompiledModel)
    sides = [(9, 70), (40, 40), (12, 31)]
    for _ in range(2):
        for height, width in sides:
            x = floats(1, 3, height, width)
            results = by_onnxruntime(free_detector(), {"x": x})
            for one, other in zip(model(x), results, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
        gate.opened.set()
        assert until(lambda: is_ready(model))
    assert all(calls.onnxruntime and calls.program for calls in list(model.answers)[:3])


def test_a_forked_child_goes_on_by_itself(
    compiled: Any, gate: Gate, is_int8: Check, is_float: Check
) -> None:
    x = image(NEW)
    assert is_float(compiled(x), NEW)

    def answers_there() -> bool:
        first = is_float(compiled(x), NEW)
        gate.opened.set()
        return first and until(lambda: is_int8(compiled(x), NEW))

    assert exit_code_of_child(answers_there) == 0
    assert compiled.answers[0].state == "compiling"


def test_it_is_neither_pickled_nor_kept_alive(compiled: Any, gate: Gate) -> None:
    compiled(image(NEW))
    with pytest.raises(qg.OptionError, match="cannot be pickled"):
        pickle.dumps(compiled)
    del compiled
    gate.opened.set()
    assert threads_end()


def test_a_model_for_other_threads_has_it_too(compiled: Any, gate: Gate, is_float: Check) -> None:
    gate.opened.set()
    model = compiled.with_num_threads(2)
    gate.opened.clear()
    assert is_float(model(image(NEW)), NEW)


def test_calls_are_counted_for_a_bounded_number_of_shapes() -> None:
    log = AnswerLog()
    for size in range(MOST_CASES + 10):
        log.answered(case_of((size,)), "onnxruntime")
    assert next(calls.shapes for calls in log) == "x [10]"
    assert len(list(log)) == MOST_CASES


@pytest.mark.parametrize("kind", ["fixed", "late", "whole"])
def test_models_without_programs_for_shapes_count_nothing(kind: str) -> None:
    model, shapes = {
        "fixed": (MODEL, {"x": FIRST}),
        "late": (detector(), None),
        "whole": (positions()[0], None),
    }[kind]
    compiled = qg.compile(model, input_shapes=shapes, while_compiling="onnxruntime")
    assert compiled.answers == ()


PROGRAM = """
import sys
import quantglow as qg
from tests.support.free_network import free_model, image
from quantglow.runtime.shapes import background as meanwhile
meanwhile.QUICK_SECONDS = 0.0
compiled = qg.compile(free_model(), num_threads=1, while_compiling="onnxruntime")
for shape in ((1, 3, 8, 8), (2, 3, 13, 18)):
    compiled(image(shape))
print([calls.onnxruntime for calls in compiled.answers])
"""


@pytest.mark.slow
def test_a_process_may_end_while_a_program_is_compiled(tmp_path: Path) -> None:
    assert outcome(PROGRAM, tmp_path) == (0, "[1, 1]\n", "")
