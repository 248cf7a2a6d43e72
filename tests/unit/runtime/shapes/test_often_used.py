"""A shape that comes often gets a program of its own in the background, with the same results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.ir.graph.family import Case
from quantglow.runtime.shapes import program_cache
from quantglow.runtime.shapes.program_cache import OftenUsed
from quantglow.runtime.shapes.specializations import Specialisation
from quantglow.support.processes import threads
from tests.support.ending import outcome
from tests.support.free_network import free_model, image
from tests.unit.forking import exit_code_of_child

FIRST, OFTEN = (1, 3, 8, 8), (2, 3, 13, 18)
PATIENCE_SECONDS = 60


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_cache, "OFTEN", 3)
    monkeypatch.setattr(program_cache, "available_cores", lambda: 2)


@pytest.fixture
def compiled() -> Any:
    samples = [image(FIRST, seed) for seed in range(4)]
    options: dict[str, Any] = {"num_threads": 1, "verify": False, "progress": False}
    return qg.quantize_and_compile(free_model(), samples, **options)


def served(compiled: Any) -> object:
    return compiled.specialisations.at({"x": image(OFTEN)})


def until_it_has_its_own(compiled: Any) -> bool:
    end = time.monotonic() + PATIENCE_SECONDS
    while not isinstance(served(compiled), Specialisation):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.slow
def test_it_gets_a_program_with_the_same_integers(compiled: Any, tmp_path: Path) -> None:
    compiled.save(tmp_path / "m.qgm")
    for model in (compiled, qg.load(tmp_path / "m.qgm", num_threads=1)):
        before = model(image(OFTEN, 5))
        assert not isinstance(served(model), Specialisation)
        assert until_it_has_its_own(model)
        for value, expected in zip(model(image(OFTEN, 5)), before, strict=True):
            np.testing.assert_array_equal(value, expected)
        assert [p.program for p in model.report.programs].count("for this shape") >= 1
        assert model.graph.inputs[0].type.shape == FIRST


@pytest.mark.slow
def test_warming_up_may_compile_it_at_once(compiled: Any, tmp_path: Path) -> None:
    compiled.save(tmp_path / "m.qgm")
    again = qg.load(tmp_path / "m.qgm", num_threads=1)
    before = again(image(OFTEN, 5))
    again.warm_up([{"x": OFTEN}])
    assert not isinstance(served(again), Specialisation)
    again.warm_up([{"x": OFTEN}], specialised=True)
    assert isinstance(served(again), Specialisation)
    for value, expected in zip(again(image(OFTEN, 5)), before, strict=True):
        np.testing.assert_array_equal(value, expected)
    ours = served(again)
    again.warm_up([{"x": OFTEN}], specialised=True)
    assert served(again) is ours


def test_the_first_program_of_its_own_stays(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Callable[[], object]] = []
    monkeypatch.setattr(threads, "start", lambda name, work: started.append(work))
    compiled(image(FIRST))
    for _ in range(3):
        assert not isinstance(served(compiled), Specialisation)
    compiled.warm_up([{"x": OFTEN}], specialised=True)
    program = served(compiled)
    (work,) = started
    work()
    assert isinstance(program, Specialisation)
    assert served(compiled) is program


def test_a_forked_child_gets_one_too(compiled: Any) -> None:
    compiled(image(FIRST))
    served(compiled)
    assert exit_code_of_child(lambda: until_it_has_its_own(compiled)) == 0


@pytest.mark.slow
def test_a_shape_that_cannot_be_compiled_keeps_its_program(
    compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fails(graph: object, check: object) -> None:
        tried.append(graph)
        raise qg.BackendError("no kernel")

    programs = compiled.specialisations
    monkeypatch.setattr(type(programs.compiler), "load_kernels", lambda s, g, c: fails(g, c))
    compiled(image(FIRST))
    before = compiled(image(OFTEN, 5))
    for _ in range(8):
        for value, expected in zip(compiled(image(OFTEN, 5)), before, strict=True):
            np.testing.assert_array_equal(value, expected)
    end = time.monotonic() + PATIENCE_SECONDS
    while not tried and time.monotonic() < end:
        time.sleep(0.01)
    assert tried
    assert not isinstance(served(compiled), Specialisation)


def test_a_case_is_tried_once_until_it_is_forgotten() -> None:
    case = Case.of({"x": (1,)})
    recorded: list[Case] = []
    often = OftenUsed(lambda case, check: recorded.append(case))
    for tries in (1, 2):
        for _ in range(10):
            often.called(case)
            for thread in threading.enumerate():
                if thread.name == "quantglow-often-used":
                    thread.join()
        assert recorded == [case] * tries
        often.forget(case)


def test_a_single_core_is_left_to_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_cache, "available_cores", lambda: 1)
    recorded: list[Case] = []
    often = OftenUsed(lambda case, check: recorded.append(case))
    for _ in range(10):
        often.called(Case.of({"x": (1,)}))
    assert recorded == []


PROGRAM = """
import sys
import quantglow as qg
from quantglow.runtime.shapes import program_cache
from tests.support.free_network import free_model, image
program_cache.OFTEN, program_cache.available_cores = 2, lambda: 2
compiled = qg.compile(free_model(), num_threads=2)
for shape in ((1, 3, 8, 8), *[(2, 3, 13, 18)] * 4):
    compiled(image(shape))
print("ran")
"""


@pytest.mark.slow
def test_a_process_may_end_while_one_is_compiled(tmp_path: Path) -> None:
    assert outcome(PROGRAM, tmp_path) == (0, "ran\n", "")
