"""The fuzzer's other Pythons: differences, errors and crashes are told apart, and named."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fuzz import jit
from tests.fuzz.jit import EmulatedPython, Hunt, prepared
from tests.generators.onnx_models import models

SEED = 1


@pytest.fixture(scope="module")
def python() -> Iterator[EmulatedPython]:
    """This Python in the place of an emulated one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "interpreter", lambda level: Path(sys.executable))
        python = EmulatedPython("native")
        yield python
        python.close()


@pytest.fixture
def task(tmp_path: Path) -> dict[str, Any]:
    actual = prepared(models.drawn(SEED), tmp_path)
    assert actual is not None
    return {**actual, "threads": 1}


def test_equal_outputs_are_no_finding(python: EmulatedPython, task: dict[str, Any]) -> None:
    assert python.difference(task) == ""


def test_another_integer_is_a_finding(python: EmulatedPython, task: dict[str, Any]) -> None:
    with np.load(task["arrays"]) as content:
        arrays = dict(content)
    arrays["0 out 0"] = arrays["0 out 0"] + np.ones(1, arrays["0 out 0"].dtype)
    np.savez(task["arrays"], **arrays)
    assert "of the values differ" in python.difference(task)


def test_an_error_is_a_finding(python: EmulatedPython, task: dict[str, Any]) -> None:
    assert python.difference({**task, "threads": 0}).startswith("raises OptionError")


@pytest.mark.slow
def test_the_end_of_the_process_is_a_finding_of_one_graph(
    python: EmulatedPython, task: dict[str, Any]
) -> None:
    assert python.difference(task) == ""
    assert python.process is not None
    python.process.kill()
    python.process.wait()
    assert python.difference(task).startswith("crash: exit code -9")
    assert python.difference(task) == ""


def test_each_level_has_its_part_of_the_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hunt, "check", lambda self, seed, python: "")
    actual = jit.hunt(["neon", "i8mm"], range(11))
    assert actual.counts == {"neon": 6, "i8mm": 5}
