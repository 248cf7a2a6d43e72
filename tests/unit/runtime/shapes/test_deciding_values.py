"""Values of small inputs that decide shapes or branches are part of a program's case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.runtime.shapes.free_shapes import MOST_VALUES, FreeShapes
from quantglow.runtime.shapes.specializations import OneShape
from quantglow.support.errors import InputError, ModelError, OptionError, UndecidedError
from tests.unit.importer.onnx.onnx_models import floats

node = helper.make_node
X = floats(4, 6)


def model_of(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, list[Any]]], **arrays: np.ndarray
) -> onnx.ModelProto:
    """The model ``y`` of these inputs: name -> (element type, dimensions)."""
    info = [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", info, [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def branch(name: str, weights: str) -> onnx.GraphProto:
    inner = [
        node("MatMul", ["x", weights], [f"{name}:m"]),
        node("Relu", [f"{name}:m"], [f"{name}:r"]),
    ]
    result = helper.make_tensor_value_info(f"{name}:r", TensorProto.FLOAT, None)
    return helper.make_graph(inner, name, [], [result])


def choice(condition: str, result: str) -> onnx.NodeProto:
    then, other = branch("a", "wa"), branch("b", "wb")
    return node("If", [condition], [result], then_branch=then, else_branch=other)


def rate_model(rows: int | str = 4) -> onnx.ModelProto:
    """``y``: x [rows, 6] times a matrix [6, 5] where ``rate`` is 16, else one [6, 3]."""
    nodes = [
        node("Equal", ["rate", "sixteen"], ["is16"]),
        choice("is16", "h"),
        node("Softmax", ["h"], ["y"], axis=1),
    ]
    inputs = {"x": (TensorProto.FLOAT, [rows, 6]), "rate": (TensorProto.INT64, [])}
    wa, wb = floats(6, 5, seed=1), floats(6, 3, seed=2)
    return model_of(nodes, inputs, wa=wa, wb=wb, sixteen=np.array(16))


def reshape_model() -> onnx.ModelProto:
    """x [4, 6] in the shape of another input."""
    inputs = {"x": (TensorProto.FLOAT, [4, 6]), "shape": (TensorProto.INT64, [2])}
    return model_of([node("Reshape", ["x", "shape"], ["y"])], inputs)


def gather_model() -> onnx.ModelProto:
    """Rows of x by their numbers: plain data."""
    inputs = {"x": (TensorProto.FLOAT, [4, 6]), "rows": (TensorProto.INT64, [2])}
    return model_of([node("Gather", ["x", "rows"], ["y"])], inputs)


def data_model() -> onnx.ModelProto:
    """The model of ``rate_model``, decided by the sum of x."""
    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["positive"]),
        choice("positive", "y"),
    ]
    wa, wb = floats(6, 5, seed=1), floats(6, 3, seed=2)
    inputs = {"x": (TensorProto.FLOAT, [4, 6])}
    return model_of(nodes, inputs, wa=wa, wb=wb, zero=np.float32(0))


def rated(rate: int, x: np.ndarray = X) -> dict[str, np.ndarray]:
    return {"x": x, "rate": np.array(rate)}


def expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]


@pytest.mark.parametrize("rows", [4, "N"])
def test_every_value_gives_what_onnxruntime_gives(rows: Any) -> None:
    model = rate_model(rows)
    compiled = qg.compile(model, num_threads=1)
    for rate in (16, 8, 16, 7):
        (actual,) = compiled.run(None, rated(rate))
        np.testing.assert_allclose(actual, expected(model, rated(rate)), rtol=1e-5)


def test_each_value_is_compiled_once_without_onnxruntime() -> None:
    compiled = qg.compile(rate_model(), num_threads=1)
    programs = [compiled.specialisations.at(rated(rate)) for rate in (16, 8, 16, 8)]
    assert [p is programs[i % 2] for i, p in enumerate(programs)] == [True] * 4
    assert [len(p.build.programs) for p in programs[:2]] == [1, 1]
    assert compiled.specialisations.deciding == ("rate",)


def test_a_shape_that_is_an_input_is_compiled() -> None:
    compiled = qg.compile(reshape_model(), num_threads=1)
    for shape in [(6, 4), (2, 12), (-1, 3)]:
        (actual,) = compiled.run(None, {"x": X, "shape": np.array(shape)})
        np.testing.assert_array_equal(actual, X.reshape(shape))


def test_a_value_the_operators_refuse_is_named() -> None:
    compiled = qg.compile(reshape_model(), num_threads=1)
    with pytest.raises(InputError, match=r"shape.*\(5, 5\)|5.*5"):
        compiled.run(None, {"x": X, "shape": np.array([5, 5])})


def test_plain_data_decides_nothing() -> None:
    compiled = qg.compile(gather_model(), num_threads=1)
    assert isinstance(compiled.specialisations, OneShape)


def test_decisions_by_data_are_left_to_onnxruntime() -> None:
    compiled = qg.compile(data_model(), num_threads=1)
    for x in (X, -np.abs(X), np.abs(X)):
        (actual,) = compiled.run(None, {"x": x})
        np.testing.assert_allclose(actual, expected(data_model(), {"x": x}), rtol=1e-5)


def test_a_counter_does_not_compile_for_ever() -> None:
    compiled = qg.compile(rate_model(), num_threads=1)
    for rate in range(MOST_VALUES + 5):
        (actual,) = compiled.run(None, rated(rate))
        np.testing.assert_allclose(actual, expected(rate_model(), rated(rate)), rtol=1e-5)
    programs = compiled.specialisations
    assert isinstance(programs, FreeShapes)
    assert len(programs.shapes) == MOST_VALUES + 1


def test_wrong_element_types_of_deciding_inputs_are_refused() -> None:
    compiled = qg.compile(rate_model(), num_threads=1)
    for rate in (np.array(16.0), np.array(np.nan), np.array("16")):
        with pytest.raises(InputError, match="'rate' must be int64"):
            compiled.run(None, {"x": X, "rate": rate})


def test_importing_asks_for_the_value() -> None:
    with pytest.raises(UndecidedError, match=r"\['rate'\] as input_values") as caught:
        qg.import_model(rate_model())
    assert caught.value.inputs == ("rate",)


def test_importing_takes_the_value() -> None:
    graph = qg.import_model(rate_model(), input_values={"rate": 8})
    (actual,) = qg.interpret(graph, rated(8))
    np.testing.assert_allclose(actual, expected(rate_model(), rated(8)), rtol=1e-5)


@pytest.mark.parametrize("values", [{"x": [1] * 24}, {"rate": [1, 2]}, {"z": 1}])
def test_values_that_do_not_fit_are_refused(values: Any) -> None:
    with pytest.raises(ModelError, match="input_values"):
        qg.import_model(rate_model(), input_values=values)


def test_values_that_are_no_integers_are_refused() -> None:
    with pytest.raises(OptionError, match=r"input_values\['rate'\] must be a list of integers"):
        qg.import_model(rate_model(), input_values={"rate": "a"})  # type: ignore[dict-item]


@pytest.fixture(scope="module", params=[4, "N"])
def int8(request: Any) -> Any:
    samples = [rated(rate, floats(4, 6, seed=i)) for i in range(6) for rate in (8, 16, 16)]
    model = rate_model(request.param)
    return qg.quantize_and_compile(model, samples, num_threads=1, progress=False)


@pytest.mark.slow_variants
@pytest.mark.parametrize("rate", [8, 16])
def test_both_branches_become_int8(int8: Any, rate: int) -> None:
    graph = int8.specialisations.at(rated(rate)).graph
    (gemm,) = [n for n in graph.nodes if n.op == "Gemm"]
    assert gemm.w.type.quant is not None
    (actual,) = int8.run(None, rated(rate))
    np.testing.assert_allclose(actual, qg.interpret(graph, rated(rate))[0], rtol=1e-6)
    assert np.abs(actual - expected(rate_model(), rated(rate))).max() < 0.1


@pytest.mark.slow
def test_options_may_name_nodes_of_one_branch() -> None:
    samples = [rated(rate, floats(4, 6, seed=i)) for i in range(3) for rate in (8, 16, 16)]
    options = {"num_threads": 1, "progress": False}
    compiled = qg.quantize_and_compile(rate_model(), samples, ignored_scope="a:r", **options)
    for rate, precision in ((16, None), (8, "i8")):
        graph = compiled.specialisations.at(rated(rate)).graph
        (gemm,) = [n for n in graph.nodes if n.op == "Gemm"]
        assert (str(gemm.x.type.dtype) if gemm.x.type.quant else None) == precision


def test_the_report_is_about_the_value_of_most_data(int8: Any) -> None:
    assert int8.specialisations.first.case.value_map == {"rate": (16,)}
    assert int8.report.samples >= 1
    assert int8.report.origin == "that calibration did not see"


def test_a_saved_model_gives_the_same_integers_for_every_value(int8: Any, tmp_path: Path) -> None:
    int8.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=1)
    loaded.save(tmp_path / "again.qgm")
    again = qg.load(tmp_path / "again.qgm", num_threads=1)
    for rate in (8, 16, 3):
        (expected,) = int8.run(None, rated(rate))
        np.testing.assert_array_equal(loaded.run(None, rated(rate))[0], expected)
        np.testing.assert_array_equal(again.run(None, rated(rate))[0], expected)


def test_a_saved_profile_knows_the_values(int8: Any, tmp_path: Path) -> None:
    int8.profile.save(tmp_path / "m.profile.npz")
    assert qg.Profile.load(tmp_path / "m.profile.npz") == int8.profile
    again = qg.quantize_and_compile(rate_model(), tmp_path / "m.profile.npz", num_threads=1)
    assert again.specialisations.first.case.value_map == {"rate": (16,)}
