"""``warm_up`` compiles ahead: calls with these shapes compile nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import quantglow as qg
from quantglow.memory import planning
from quantglow.runtime.shapes import general_planning
from quantglow.support.errors import InputError, OptionError
from tests.support.free_network import free_model, image

SHAPES = [(1, 3, 8, 8), (1, 3, 8, 12), (1, 3, 1, 5)]


def refused(*arguments: object, **named: object) -> Any:
    raise AssertionError("a call plans a program")


@pytest.mark.parametrize("is_loaded", [False, True])
def test_calls_after_warming_up_plan_nothing(
    is_loaded: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled: Any = qg.compile(free_model(), num_threads=1)
    if is_loaded:
        compiled.run(None, {"x": image(SHAPES[0])})
        compiled.save(tmp_path / "free.qgm")
        compiled = qg.load(tmp_path / "free.qgm", num_threads=1)
    expected = [qg.compile(free_model(), num_threads=1)(x=image(s))[0].tobytes() for s in SHAPES]
    compiled.warm_up({"x": shape} for shape in SHAPES)
    monkeypatch.setattr(planning, "plan_program", refused)
    monkeypatch.setattr(general_planning, "plan_program", refused)
    assert [compiled(x=image(shape))[0].tobytes() for shape in SHAPES] == expected


def test_shapes_that_the_model_does_not_take_are_refused() -> None:
    compiled: Any = qg.compile(free_model(), num_threads=1)
    with pytest.raises(InputError):
        compiled.warm_up([{"x": (1, 4, 8, 8)}])
    with pytest.raises(InputError):
        compiled.warm_up([{"y": (1, 3, 8, 8)}])
    with pytest.raises(OptionError):
        compiled.warm_up([{"x": (1, 3, 8, -1)}])


@pytest.mark.parametrize("wrong", [None, 5, {"x": (1, 3, 8, 8)}])
def test_shapes_that_are_no_list_are_refused(wrong: Any) -> None:
    compiled: Any = qg.compile(free_model(), num_threads=1)
    with pytest.raises(OptionError, match="shapes must be a list of shapes by name of input"):
        compiled.warm_up(wrong)
    with pytest.raises(OptionError, match="specialised must be True or False"):
        compiled.warm_up([], specialised="yes")
    with (
        qg.InferQueue(compiled) as queue,
        pytest.raises(OptionError, match="calls must be a list of shapes by name of input"),
    ):
        queue.warm_up(wrong)
