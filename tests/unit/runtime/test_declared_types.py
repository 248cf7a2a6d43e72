"""Float types that a model declares stay at its border; between, everything is float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.cli.main import main
from quantglow.ir.graph.signature import Signature, numpy_type
from quantglow.support.arrays import Array
from tests.generators.onnx_models.float_types import CODES, all_of
from tests.support.combinations import covering
from tests.support.small_network import SHAPE, small_model, small_samples

KINDS = ("float16", "float64", "bfloat16")
NAMES = {"float16": "float16", "float64": "double", "bfloat16": "bfloat16"}
STEP = {"float16": 2.0**-10, "float64": 2.0**-22, "bfloat16": 2.0**-7}
"""Relative error of rounding each layer in the type."""


def network(kind: str) -> onnx.ModelProto:
    return all_of(small_model(), kind)


def samples(kind: str, count: int = 12) -> list[Array]:
    return [x.astype(numpy_type(kind)) for x in small_samples(count)]


def quantized(model: onnx.ModelProto, data: list[Array], **options: Any) -> qg.CompiledModel:
    compiled = qg.quantize_and_compile(model, data, num_threads=1, progress=False, **options)
    assert isinstance(compiled, qg.CompiledModel)
    return compiled


def free_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    for end in (*model.graph.input, *model.graph.output):
        end.type.tensor_type.shape.dim[0].dim_param = "N"
    return model


def assert_same(actual: list[Array], expected: list[Array]) -> None:
    assert [a.dtype for a in actual] == [a.dtype for a in expected]
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_types_are_those_of_the_model(kind: str) -> None:
    compiled = qg.compile(network(kind))
    infos = [*compiled.get_inputs(), *compiled.get_outputs()]
    assert [info.type for info in infos] == [f"tensor({NAMES[kind]})"] * 3
    assert {info.dtype for info in infos} == {numpy_type(kind)}
    assert f"x ({kind})" in "".join(compiled.report.notes)


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_the_float32_model_rounded(kind: str) -> None:
    x = samples(kind)[0]
    compiled = qg.compile(network(kind), num_threads=1).run(None, {"x": x})
    exact = qg.compile(small_model(), num_threads=1).run(None, {"x": x.astype(np.float32)})
    for a, b in zip(compiled, exact, strict=True):
        assert a.dtype == numpy_type(kind)
        np.testing.assert_allclose(a.astype(np.float32), b, atol=STEP[kind] * np.abs(b).max() * 4)


def test_float16_is_as_exact_as_onnxruntime() -> None:
    x = samples("float16")[0]
    compiled = qg.compile(network("float16")).run(None, {"x": x})
    session = ort.InferenceSession(network("float16").SerializeToString())
    for a, b in zip(compiled, session.run(None, {"x": x}), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fed", ["float16", "float32", "float64", "int64"])
def test_other_types_are_refused_as_a_session_does(kind: str, fed: str) -> None:
    compiled = qg.compile(network(kind))
    if fed == kind:
        compiled.run(None, {"x": np.zeros(SHAPE, fed)})
        return
    with pytest.raises(qg.InputError, match=rf"must be {kind}, got {fed}. Remedy.*{kind}\)"):
        compiled.run(None, {"x": np.zeros(SHAPE, fed)})


def test_float64_where_float32_is_declared_is_refused() -> None:
    with pytest.raises(qg.InputError, match=r"float64.*numpy.float32"):
        qg.compile(small_model()).run(None, {"x": np.zeros(SHAPE)})


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("inputs", "kind"), covering(["float16", "float64", "bfloat16"], ["float32", *KINDS])
)
def test_calibration_samples_of_any_float_type_give_the_same_model(inputs: str, kind: str) -> None:
    model = small_model() if kind == "float32" else network(kind)
    coarse = [x.astype(numpy_type("bfloat16")).astype(np.float32) for x in small_samples(12)]
    coarse = [np.clip(x.astype(np.float16).astype(np.float32), -8, 8) for x in coarse]
    feeds = {"x": coarse[0].astype(numpy_type(kind))}
    quantized_model = quantized(model, coarse).run(None, feeds)
    data = [x.astype(numpy_type(inputs)) for x in coarse]
    assert_same(quantized(model, data).run(None, feeds), quantized_model)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (
            "float16",
            1e5,
            r"sample 1 has 1 value\(s\) too large for float16 in input 'x'.*0, 1, 2, 3",
        ),
        ("float64", 1e300, r"sample 1 has 1 value\(s\) too large for float32 in input 'x'"),
        ("float32", 1e300, r"sample 1 has 1 value\(s\) too large for float32 in input 'x'"),
        ("float64", np.nan, r"sample 1 has 1 NaN or Inf value\(s\) in input 'x'"),
    ],
)
def test_samples_that_do_not_stay_finite_are_refused(kind: str, value: float, message: str) -> None:
    model = small_model() if kind == "float32" else network(kind)
    data = [x.astype(np.float64) for x in small_samples(3)]
    data[1][0, 1, 2, 3] = value
    with pytest.raises(qg.CalibrationError, match=message):
        qg.profile(model, data, progress=False)


def test_a_run_refuses_values_that_float32_cannot_hold() -> None:
    x = np.zeros(SHAPE)
    x[0, 1, 2, 3] = -1e39
    compiled = qg.compile(network("float64"))
    with pytest.raises(qg.InputError, match=r"'x' holds -1e\+39 at \[0, 1, 2, 3\]"):
        compiled.run(None, {"x": x})
    x[0, 1, 2, 3] = -np.inf
    compiled.run(None, {"x": x})


@pytest.mark.slow_variants
@pytest.mark.parametrize(("free", "kind"), covering([False, True], KINDS))
def test_saved_and_loaded(kind: str, free: bool, tmp_path: Path) -> None:
    quantized_model = quantized(free_batch(network(kind)) if free else network(kind), samples(kind))
    quantized_model.save(tmp_path / "model.qgm")
    again = qg.load(tmp_path / "model.qgm", num_threads=1)
    assert again.get_inputs() == quantized_model.get_inputs()
    assert again.get_outputs() == quantized_model.get_outputs()
    assert again.report.notes == quantized_model.report.notes
    for count in (1, 3) if free else (1,):
        x = np.concatenate(samples(kind)[:count])
        assert_same(again.run(None, {"x": x}), quantized_model.run(None, {"x": x}))
    text = str(quantized_model.graph)
    assert f"declared 'x': {kind}\n" in text


@pytest.mark.slow_variants
@pytest.mark.parametrize(("free", "kind"), covering([False, True], KINDS))
def test_exported_models_declare_the_same_types(kind: str, free: bool, tmp_path: Path) -> None:
    quantized_model = quantized(free_batch(network(kind)) if free else network(kind), samples(kind))
    target = tmp_path / "model.onnx"
    quantized_model.export_onnx(target)
    again = qg.compile(str(target), num_threads=1)
    x = samples(kind)[0]
    assert again.get_inputs() == quantized_model.get_inputs()
    assert_same(again.run(None, {"x": x}), quantized_model.run(None, {"x": x}))
    if kind != "bfloat16":  # onnxruntime takes no arrays of it
        session = ort.InferenceSession(str(target)).run(None, {"x": x})
        for a, b in zip(session, quantized_model.run(None, {"x": x}), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=np.abs(b).max() / 50)


@pytest.mark.parametrize(("threads", "kind"), covering([1, 2, 3], KINDS))
def test_int8_is_what_the_interpreter_gives(kind: str, threads: int) -> None:
    graph = qg.import_model(network(kind))
    int8 = qg.quantize(graph, qg.profile(graph, samples(kind), progress=False))
    compiled = qg.compile(int8, num_threads=threads)
    feeds = {"x": samples(kind)[0]}
    assert_same(compiled.run(None, feeds), qg.interpret(int8, feeds))


def test_the_check_compares_with_onnxruntime_in_the_declared_types() -> None:
    inputs = samples("float16")
    quantized_model = quantized(network("float16"), inputs, validation_data=inputs)
    assert quantized_model.report.compared_with == "onnxruntime (float)"
    assert quantized_model.report.outputs[0].sqnr_db > 30


def test_a_validation_function_gets_a_model_of_the_declared_types() -> None:
    observed = []

    def figure(model: qg.CompiledModel) -> float:
        observed.append(model.run(None, {"x": samples("float16")[0]})[0].dtype)
        return 1.0

    data = samples("float16")
    qg.quantize_and_compile(network("float16"), data, max_drop=0.1, validation_fn=figure)
    qg.quantize_and_compile(network("float16"), data, max_drop=0.5, progress=False)
    assert set(observed) == {np.dtype("float16")}


def mixed(kind: str, outer: int) -> onnx.ModelProto:
    """Weights and sums of one type behind casts, as converters that keep the border make them."""
    numpy_kind = numpy_type(kind)
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Cast", ["x"], ["inner"], to=CODES[kind]),
        helper.make_node("MatMul", ["inner", "w"], ["product"]),
        helper.make_node("Relu", ["product"], ["kept"]),
        helper.make_node("Cast", ["kept"], ["y"], to=outer),
    ]
    ends = [helper.make_tensor_value_info(n, outer, s) for n, s in (("x", [2, 8]), ("y", [2, 4]))]
    weights = rng.standard_normal((8, 4)).astype(numpy_kind)
    arrays = [numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph(nodes, "mixed", ends[:1], ends[1:], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_types_inside_are_computed_in_float32(kind: str) -> None:
    model = mixed(kind, TensorProto.FLOAT)
    compiled = qg.compile(model)
    assert f"computed in float32: {kind} inside" in compiled.report.notes
    x = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    results = compiled.run(None, {"x": x})[0]
    session = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(results, session, rtol=1e-2, atol=1e-2)


def detector(kind: str) -> onnx.ModelProto:
    """A product, then shapes that only a run knows, with weights of the type behind the cut."""
    numpy_kind = numpy_type(kind)
    weights = np.random.default_rng(0).standard_normal((16, 8)).astype(numpy_kind)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Relu", ["product"], ["kept"]),
        helper.make_node("Cast", ["kept"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("NonZero", ["wide"], ["where"]),
        helper.make_node("Transpose", ["where"], ["places"], perm=[1, 0]),
        helper.make_node("GatherND", ["kept", "places"], ["found"]),
        helper.make_node("Mul", ["found", "two"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, CODES[kind], shape)
        for name, shape in (("x", ["N", 16]), ("y", [None]), ("kept", ["N", 8]))
    ]
    arrays = [numpy_helper.from_array(weights, "w")]
    arrays.append(numpy_helper.from_array(np.array(2, numpy_kind), "two"))
    graph = helper.make_graph(nodes, "cut", ends[:1], ends[1:], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_models_of_late_sizes_keep_the_types(kind: str, tmp_path: Path) -> None:
    rng, model = np.random.default_rng(2), detector(kind)
    x = rng.standard_normal((4, 16)).astype(kind)
    session = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    compiled = qg.compile(model)
    assert isinstance(compiled, qg.CompiledModel)
    for a, b in zip(compiled.run(None, {"x": x}), session, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-2)
    int8 = qg.quantize_and_compile(model, [rng.standard_normal((4, 16)) for _ in range(8)])
    int8.save(tmp_path / "model.qgm")
    assert_same(qg.load(tmp_path / "model.qgm").run(None, {"x": x}), int8.run(None, {"x": x}))


@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_cases_that_onnxruntime_runs_keep_the_types(kind: str) -> None:
    """A batch of nothing is not compiled."""
    compiled = qg.compile(free_batch(all_of(small_model(last_op="Gemm"), "float16")))
    results = compiled.run(None, {"x": np.zeros((0, *SHAPE[1:]), np.float16)})
    assert [a.dtype for a in results] == [np.float16] * 2
    assert [len(a) for a in results] == [0, 0]


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_on_the_command_line(kind: str, tmp_path: Path) -> None:
    model, data, result = (tmp_path / name for name in ("m.onnx", "x.npz", "y.npz"))
    onnx.save(network(kind), model)
    np.savez(data, x=np.concatenate(samples(kind)))
    saved = tmp_path / "m.qgm"
    assert not main(
        ["quantize", str(model), "--calibration-data", str(data), "--output", str(saved)]
    )
    np.savez(data, x=samples(kind)[0])
    assert not main(["run", str(saved), "--inputs", str(data), "--output", str(result)])
    with np.load(result) as arrays:
        assert {array.dtype for array in arrays.values()} == {np.dtype(kind)}


def test_a_signature_is_read_back_and_checked() -> None:
    signature = qg.import_model(network("float16")).signature
    known = signature.to_json()
    assert Signature.from_json(known) == signature
    known["inputs"][0]["declared"] = "float8"
    with pytest.raises(ValueError, match="float8"):
        Signature.from_json(known)


def test_without_ml_dtypes_bfloat16_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = qg.compile(network("bfloat16"))
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(qg.InputError, match="pip install ml_dtypes"):
        compiled.run(None, {"x": np.zeros(SHAPE, np.float32)})
