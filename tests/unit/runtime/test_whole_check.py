"""The report of a model that is cut has the accuracy of its own outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.api.pipeline import int8_tail as whole_check
from quantglow.runtime.hybrid.fallback_model import PartlyCompiledModel
from quantglow.support.arrays import Array
from tests.support.choosing_rows import choosing_rows, rows_of
from tests.unit.importer.onnx.onnx_models import by_onnxruntime

pytestmark = pytest.mark.usefixtures("in_parts")

OUTPUTS = ["y", "shape", "chosen"]
UNSEEN = [rows_of(40, seed) for seed in range(50, 53)]


def quantized(data: Any = None, **options: Any) -> Any:
    """An int8 model of both parts, checked on three samples, or ``data``."""
    return qg.quantize_and_compile(
        choosing_rows(40, **options),
        [rows_of(40, seed) for seed in range(6)],
        validation_data=UNSEEN if data is None else data,
        num_threads=1,
        progress=False,
    )


@pytest.mark.slow_variants
@pytest.mark.parametrize("heavy", [True, False])
def test_all_outputs_are_compared_with_onnxruntime(heavy: bool) -> None:
    compiled = quantized(heavy=heavy)
    assert isinstance(compiled, PartlyCompiledModel)
    report = compiled.report
    assert [output.name for output in report.outputs] == OUTPUTS
    assert (report.compared_with, report.samples) == ("onnxruntime (float)", len(UNSEEN))
    error, signal = 0.0, 0.0
    for x in UNSEEN:
        actual, expected = compiled(x)[0], by_onnxruntime(choosing_rows(40, heavy), {"x": x})[0]
        if actual.shape == expected.shape:
            error += float(np.square(actual - expected, dtype=np.float64).sum())
            signal += float(np.square(expected, dtype=np.float64).sum())
    assert report.outputs[0].sqnr_db == pytest.approx(10 * np.log10(signal / error), abs=1e-2)


@pytest.mark.slow
def test_outputs_of_a_later_cut_are_compared_too() -> None:
    assert [output.name for output in quantized(again=True).report.outputs] == [*OUTPUTS, "z"]


@pytest.mark.slow
def test_a_saved_model_keeps_the_figures(tmp_path: Path) -> None:
    compiled = quantized()
    compiled.save(tmp_path / "m.qgm")
    assert qg.load(tmp_path / "m.qgm").report.outputs == compiled.report.outputs


@pytest.mark.slow
def test_samples_of_other_shapes_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def shorter(self: Any, expected: list[str], feeds: dict[str, Array]) -> Sequence[Array]:
        first, *others = results(self, expected, feeds)
        return [first[:-1] if (feeds["x"] == UNSEEN[1]).all() else first, *others]

    results = PartlyCompiledModel.results
    plain = quantized(data=[UNSEEN[0], UNSEEN[2]]).report.outputs[0]
    monkeypatch.setattr(PartlyCompiledModel, "results", shorter)
    report = quantized().report
    assert report.outputs[0].sqnr_db == pytest.approx(plain.sqnr_db)
    assert any("'y' has another shape than in float on 1 of 3" in note for note in report.notes)


def test_a_check_that_fails_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> Any:
        raise OSError("no more processes")

    monkeypatch.setattr(whole_check, "running", refused)
    report = quantized().report
    assert report.outputs and not {output.name for output in report.outputs} & {"y", "chosen"}
    assert any(whole_check.HEAD_ONLY in note for note in report.notes)


@pytest.mark.slow
def test_labels_are_those_of_the_last_part() -> None:
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
    assert report.right is None and whole_check.NO_RIGHT_ANSWERS in report.notes


def test_a_model_that_is_cut_on_first_use_reports_its_later_parts(tmp_path: Path) -> None:
    model = choosing_rows("M", again=True)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "N"
    compiled = qg.compile(model, num_threads=1)
    compiled.run(None, {"x": rows_of(40)})
    assert {x.name for x in compiled.report.fallback} == {"chosen:found", "better:found"}
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=1)
    loaded.run(None, {"x": rows_of(40)})
    assert {x.name for x in loaded.report.fallback} == {"chosen:found", "better:found"}
