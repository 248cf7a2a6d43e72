"""Outputs whose shapes are known late are compared with onnxruntime's, and have right answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.api.pipeline.compilation import NO_RIGHT_ANSWERS
from quantglow.evaluation import outputs
from quantglow.ir.types import DType
from tests.support.choosing_rows import choosing_rows, rows_of
from tests.support.opaque_results import opaque_results
from tests.unit.importer.onnx.onnx_models import by_onnxruntime

UNSEEN = [rows_of(40, seed) for seed in range(50, 58)]


@pytest.fixture(scope="module", params=["late sizes", "opaque results"], autouse=True)
def is_opaque(request: Any) -> Iterator[bool]:
    """Whether late outputs are opaque, or have sizes of their own."""
    opaque = request.param == "opaque results"
    with opaque_results() if opaque else nullcontext():
        yield opaque


def quantized(data: Any = None, **options: Any) -> Any:
    """An int8 model, checked on ``UNSEEN`` or ``data``."""
    return qg.quantize_and_compile(
        choosing_rows(40, **options),
        [rows_of(40, seed) for seed in range(6)],
        validation_data=UNSEEN if data is None else data,
        num_threads=1,
        progress=False,
    )


@pytest.fixture(scope="module")
def compiled(is_opaque: bool) -> Any:
    return quantized(again=True)


def test_all_outputs_are_compared_where_they_have_one_shape(compiled: Any, is_opaque: bool) -> None:
    kinds = {name: end.type.dtype for name, end in compiled.graph.outputs}
    assert (kinds["z"] is DType.OPAQUE) is is_opaque
    report, names = compiled.report, [info.name for info in compiled.get_outputs()]
    assert [output.name for output in report.outputs] == names
    assert (report.compared_with, report.samples) == (outputs.ONNXRUNTIME, len(UNSEEN))
    model, others = choosing_rows(40, again=True), 0
    error, signal = 0.0, 0.0
    for x in UNSEEN:
        actual, expected = compiled(x)[0], by_onnxruntime(model, {"x": x})[0]
        others += actual.shape != expected.shape
        if actual.shape == expected.shape:
            error += float(np.square(actual - expected, dtype=np.float64).sum())
            signal += float(np.square(expected, dtype=np.float64).sum())
    assert others, "rounded numbers choose other rows of some sample"
    assert report.outputs[0].sqnr_db == pytest.approx(10 * np.log10(signal / error), abs=1e-2)
    said = f"'y' has another shape than in float on {others} of {len(UNSEEN)}"
    assert any(said in note for note in report.notes)


def test_a_saved_model_keeps_the_figures(compiled: Any, tmp_path: Path) -> None:
    compiled.save(tmp_path / "m.qgm")
    assert qg.load(tmp_path / "m.qgm").report.outputs == compiled.report.outputs


@pytest.mark.slow
def test_the_interpreter_answers_for_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise OSError("no more processes")

    monkeypatch.setattr(outputs, "running", refuse)
    report = quantized().report
    assert report.compared_with == outputs.INTERPRETER
    assert [output.name for output in report.outputs] == ["y", "shape", "chosen"]


def test_labels_are_those_of_a_late_output(compiled: Any) -> None:
    x = UNSEEN[0]
    actual, expected = quantized()(x)[0], by_onnxruntime(choosing_rows(40), {"x": x})[0]
    assert actual.shape == expected.shape
    labels = expected.argmax(1)
    labels[0] = (labels[0] + 1) % expected.shape[1]
    right = quantized(data={"x": x, "labels": labels}).report.right
    assert right is not None and right.labels == len(labels)
    assert right.float_share == pytest.approx((len(labels) - 1) / len(labels))
    assert right.int8_share == pytest.approx(np.mean(actual.argmax(1) == labels))


@pytest.mark.slow
def test_labels_that_fit_no_output_are_noted() -> None:
    report = quantized(data={"x": UNSEEN[0], "labels": np.zeros(7, np.int64)}).report
    assert report.right is None and NO_RIGHT_ANSWERS in report.notes
