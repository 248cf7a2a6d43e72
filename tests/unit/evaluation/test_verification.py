"""The check never costs the model: any error in it becomes a note."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.evaluation import layers as verification
from quantglow.evaluation.report import Report
from quantglow.ort import float_results as onnxruntime_check
from tests.support.small_network import small_model, small_samples

HERE = "tests.unit.isolated_calls:"


def compiled() -> tuple[qg.CompiledModel, Report]:
    compiled = qg.quantize_and_compile(
        small_model(), small_samples(), num_threads=1, progress=False
    )
    assert isinstance(compiled, qg.CompiledModel)
    return compiled, compiled.report


@pytest.fixture(scope="module")
def usual() -> Report:
    return compiled()[1]


@pytest.mark.slow_variants
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
    built, report = compiled()
    assert report.compared_with == "the float interpreter"
    assert any(cause in note for note in report.notes)
    assert report.outputs[0].sqnr_db > 20
    assert built.run(None, {"x": small_samples()[0]})


@pytest.mark.slow
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


@pytest.mark.slow_variants
@pytest.mark.parametrize("part", ["output_accuracy", "layer_accuracy"])
@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), MemoryError()])
def test_an_exception_of_a_check_is_a_note(
    part: str, error: Exception, usual: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(verification, part, failing)
    built, report = compiled()
    assert [note for note in report.notes if type(error).__name__ in note]
    assert bool(report.outputs) == (part != "output_accuracy")
    assert [layer.name for layer in report.layers] == [layer.name for layer in usual.layers]
    assert built.run(None, {"x": small_samples()[0]})


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("op", "attributes"),
    [("Softmax", {"axis": 1}), ("LogSoftmax", {}), ("Sigmoid", {}), ("ArgMax", {"axis": 1})],
    ids=str,
)
def test_outputs_that_hide_errors_are_measured_behind(op: str, attributes: dict[str, int]) -> None:
    """Scores far apart: probabilities are 0 and 1 in float and in int8."""
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.normal(size=(16, 8)).astype(np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("Reshape", ["scores", "shape"], ["moved"]),
        helper.make_node(op, ["moved"], ["y"], **attributes),
    ]
    shape = numpy_helper.from_array(np.array([1, 8]), "shape")
    element, size = (TensorProto.INT64, 1) if op == "ArgMax" else (TensorProto.FLOAT, 8)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16])
    y = helper.make_tensor_value_info("y", element, [1, size])
    graph = helper.make_graph(nodes, "hidden", [x], [y], [weights, shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = [rng.normal(size=(1, 16)).astype(np.float32) * 1000 for _ in range(12)]
    report = qg.quantize_and_compile(model, samples, num_threads=1, progress=False).report
    (output,) = report.outputs
    assert output.logits_db in [layer.sqnr_accumulated_db for layer in report.layers]
    assert output.logits_db is not None
    assert f"{output.logits_db:.1f} dB in the logits" in report.headline
    assert Report.from_json(report.to_json()).outputs == report.outputs
