"""The check never costs the model: any error in it becomes a note."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.report.accuracy import onnxruntime_check, verification
from quantglow.report.report import Report
from tests.support.small_network import small_model, small_samples

HERE = "tests.unit.isolated_calls:"


def compiled() -> tuple[qg.CompiledModel, Report]:
    made = qg.quantize_and_compile(small_model(), small_samples(), num_threads=1, progress=False)
    assert isinstance(made, qg.CompiledModel)
    assert isinstance(made.report, Report)
    return made, made.report


@pytest.fixture(scope="module")
def usual() -> Report:
    return compiled()[1]


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        ("crash", "SIGSEGV"),
        ("hang", "longer than 1 s"),
        ("fail", "KeyError: 'no such thing'"),
        ("leave", "without a result"),
    ],
)
def test_a_child_that_fails_leaves_the_interpreter_to_compare_with(
    call: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime_check, "PLACE", HERE + call)
    if call == "hang":
        monkeypatch.setattr(onnxruntime_check, "MAX_SECONDS", 1.0)
    made, report = compiled()
    assert report.compared_with == "the float interpreter"
    assert any(cause in note for note in report.notes)
    assert report.outputs[0].sqnr_db > 20
    assert made.run(None, {"x": small_samples()[0]})


def test_a_crash_of_the_graph_optimizer_turns_it_off(
    usual: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime_check, "PLACE", HERE + "crash_while_optimizing")
    _, report = compiled()
    assert report.compared_with == usual.compared_with == "onnxruntime (float)"
    assert not usual.notes
    assert "without its graph optimizations" in report.notes[0]
    assert "SIGSEGV" in report.notes[0]
    np.testing.assert_allclose(report.outputs[0].sqnr_db, usual.outputs[0].sqnr_db, atol=0.1)


@pytest.mark.parametrize("part", ["output_accuracy", "layer_accuracy"])
@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), MemoryError()])
def test_an_exception_of_a_check_is_a_note(
    part: str, error: Exception, usual: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(verification, part, failing)
    made, report = compiled()
    assert [note for note in report.notes if type(error).__name__ in note]
    assert bool(report.outputs) == (part != "output_accuracy")
    assert [layer.name for layer in report.layers] == [layer.name for layer in usual.layers]
    assert made.run(None, {"x": small_samples()[0]})
