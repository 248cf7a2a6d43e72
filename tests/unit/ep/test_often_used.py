"""Shapes that come often get programs of their own in place of one for all shapes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow import ep
from quantglow.ep import hooks
from quantglow.runtime.shapes import free_shapes, program_cache
from tests.support.plug_in import session
from tests.unit.ep.test_threads import network, picture


def programs_of(model: Any) -> dict[Any, Any]:
    return dict(model.compiled.specialisations._cache.programs)


@pytest.mark.parametrize("cores", [1, 2])
def test_a_shape_that_comes_often_gets_its_own(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_cache, "available_cores", lambda: cores)
    monkeypatch.setattr(free_shapes, "OFTEN", 5)
    model = network("N")
    opened = session(model, optimize=False)
    plugged = hooks._models[max(hooks._models)]
    opened.run(None, {"x": picture(1, 8)})
    x, before = picture(1, 9), ep.counts()
    expected = qg.compile(model, num_threads=1)(x)
    for _ in range(5):
        np.testing.assert_array_equal(opened.run(None, {"x": x})[0], expected)
    assert ep.counts()["prepares"] == before["prepares"] + 1
    assert [p.is_general for p in programs_of(plugged).values()] == [True, True]
    end = time.monotonic() + (30 if cores > 1 else 0.5)
    while ep.counts()["prepares"] < before["prepares"] + 3 and time.monotonic() < end:
        np.testing.assert_array_equal(opened.run(None, {"x": x})[0], expected)
    for _ in range(20):
        np.testing.assert_array_equal(opened.run(None, {"x": x})[0], expected)
    assert ep.counts()["prepares"] == before["prepares"] + (3 if cores > 1 else 1)
    assert [p.is_general for p in programs_of(plugged).values()] == [True, cores == 1]
    assert ep.counts()["python"] == before["python"]
    memory = [len(hooks._programs[number].contexts) for number in plugged.programs]
    assert memory == [1, 1]
