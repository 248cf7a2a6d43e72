"""Programs of too many different kernels are refused after the first of them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import quantglow as qg
from quantglow.backends.llvm.jit import budget
from quantglow.backends.llvm.jit.budget import CompileMeter
from quantglow.errors import CompileBudgetError, OptionError
from tests.unit.frontend.onnx_models import floats, model_of


def test_an_estimate_from_the_first_kernels_refuses_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = iter([5.0, 10.0])
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    meter = CompileMeter(100_000, allowed=1000.0, started=0.0)
    meter.check(budget.SAMPLE - 1)
    message = (
        "100000 different kernels takes about 5000 s .200 took 10 s.*QUANTGLOW_COMPILE_SECONDS"
    )
    with pytest.raises(CompileBudgetError, match=message):
        meter.check(budget.SAMPLE)


def test_the_time_spent_counts_where_the_number_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([900.0, 1001.0])
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    meter = CompileMeter(None, allowed=1000.0, started=0.0)
    meter.check(5000)
    with pytest.raises(CompileBudgetError):
        meter.check(5001)


def test_a_limit_of_the_environment_ends_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = {"x": floats(1, 3, 1997)}
    steps = (("x", "a", 1), ("a", "b", 2), ("b", "y", 1))
    nodes = [helper.make_node("Softmax", [x], [y], axis=axis) for x, y, axis in steps]
    model = model_of(nodes, feeds, ["y"])
    monkeypatch.setenv(budget.VARIABLE, "1e-6")
    with pytest.raises(CompileBudgetError, match="allowed"):
        qg.compile(model, num_threads=1)
    monkeypatch.setenv(budget.VARIABLE, "inf")
    found = qg.compile(model, num_threads=1).run(None, feeds)[0]
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-4)


@pytest.mark.parametrize("text", ["0", "-1", "much", "nan"])
def test_a_limit_is_a_positive_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(budget.VARIABLE, text)
    with pytest.raises(OptionError, match=budget.VARIABLE):
        CompileMeter(1)
