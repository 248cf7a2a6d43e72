"""Models with operators that quantglow does not compile run all the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.importer.onnx import Source
from quantglow.importer.onnx.nodes.context import IMPORTERS
from quantglow.ir.ops import External
from quantglow.support.errors import InputError
from tests.support.detector import detector
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats, model_of, single

node = helper.make_node
SHAPE = (4, 32)


@pytest.fixture(scope="module", autouse=True)
def no_hardmax() -> Iterator[None]:
    """Importers without that of Hardmax."""
    with patch.dict(IMPORTERS):
        del IMPORTERS["Hardmax"]
        yield


def mixed_model() -> onnx.ModelProto:
    """Gemm, Hardmax (not compiled), Add, Gemm."""
    nodes = [
        node("Gemm", ["x", "w", "b"], ["a"]),
        node("Hardmax", ["a"], ["h"]),
        node("Add", ["a", "h"], ["s"]),
        node("Gemm", ["s", "w", "b"], ["y"]),
    ]
    arrays = {"w": floats(32, 32, seed=1) / 5, "b": floats(32, seed=2)}
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    return model_of(nodes, {"x": floats(*SHAPE)}, ["y"], initializers)


def samples(count: int = 3) -> list[np.ndarray]:
    return [floats(*SHAPE, seed=i) for i in range(count)]


@pytest.fixture(scope="module")
def int8() -> Any:
    return qg.quantize_and_compile(mixed_model(), samples(), num_threads=1)


def test_a_compiled_model_gives_what_onnxruntime_gives() -> None:
    compiled = qg.compile(mixed_model(), num_threads=1)(floats(*SHAPE))
    (expected,) = by_onnxruntime(mixed_model(), {"x": floats(*SHAPE)})
    np.testing.assert_allclose(compiled, expected, rtol=1e-4, atol=1e-4)


def test_the_rest_around_a_node_of_the_fallback_is_int8(int8: Any) -> None:
    kinds = {n.name: (type(n), n.operands[0].type.quant) for n in int8.graph.nodes if n.operands}
    assert kinds["h"] == (External, None)
    assert kinds["a"][1] is not None and kinds["y"][1] is not None


@pytest.mark.parametrize("backend", ["llvm", "reference"])
def test_compiled_and_interpreted_integers_agree(int8: Any, backend: str) -> None:
    compiled = qg.compile(int8.graph, num_threads=1, backend=backend)
    for x in samples(4):
        np.testing.assert_array_equal(compiled(x), qg.interpret(int8.graph, {"x": x})[0])


@pytest.mark.slow
def test_a_contract_holds_around_a_node_of_the_fallback() -> None:
    def sqnr(compiled: Any) -> float:
        return float(compiled.report.outputs[0].sqnr_db)

    loose = qg.quantize_and_compile(mixed_model(), samples(), num_threads=1)
    expected = sqnr(loose) + 10
    strict = qg.quantize_and_compile(
        mixed_model(), samples(), max_drop=10 ** (-expected / 20), num_threads=1
    )
    assert sqnr(strict) >= expected - 0.1
    assert [n.op for n in strict.report.fallback] == ["Hardmax"]


def test_the_report_says_what_the_fallback_runs_and_why(int8: Any) -> None:
    (actual,) = int8.report.fallback
    assert (actual.name, actual.op, actual.backend) == ("h", "Hardmax", "onnxruntime")
    assert actual.reason in str(int8.report)


def test_reports_of_older_files_name_the_fallback(int8: Any) -> None:
    older = int8.report.to_json()
    older["delegated"] = older.pop("fallback")
    report = qg.Report.from_json(older)
    assert report.fallback == int8.report.fallback


def test_a_saved_model_runs_again(int8: Any, tmp_path: Path) -> None:
    int8.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=1)
    np.testing.assert_array_equal(loaded(samples()[0]), int8(samples()[0]))
    assert loaded.report.fallback == int8.report.fallback


def test_threads_may_share_a_partitioned_model(int8: Any) -> None:
    inputs = samples(8)
    expected = [int8(x) for x in inputs]
    actual: dict[int, np.ndarray] = {}

    def run(first: int) -> None:
        for i in range(first, len(inputs), 4):
            actual[i] = int8(inputs[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((actual[i] == e).all() for i, e in enumerate(expected))


def test_a_model_we_compile_whole_is_not_cut() -> None:
    build = qg.compile(single("Relu", floats(2, 3))[0]).build
    assert (build.segments, len(build.programs)) == ((), 1)


def test_onnxruntime_may_be_preferred_for_everything() -> None:
    compiled = qg.compile(mixed_model(), backends=[qg.OnnxRuntimeBackend(everything=True)])
    (expected,) = by_onnxruntime(mixed_model(), {"x": floats(*SHAPE)})
    np.testing.assert_allclose(compiled(floats(*SHAPE)), expected, rtol=1e-4, atol=1e-4)
    assert {s.backend.name for s in compiled.build.segments} == {"onnxruntime"}


def test_random_numbers_differ_from_run_to_run() -> None:
    nodes = [node("RandomUniform", [], ["r"], shape=[64]), node("Add", ["x", "r"], ["y"])]
    compiled = qg.compile(model_of(nodes, {"x": floats(64)}, ["y"]))
    assert not np.array_equal(compiled(floats(64)), compiled(floats(64)))


def test_a_network_with_a_node_without_operands_is_quantized() -> None:
    nodes = [
        node("Gemm", ["x", "w"], ["a"]),
        node("RandomUniform", [], ["r"], shape=list(SHAPE), low=0.0, high=0.001),
        node("Add", ["a", "r"], ["s"]),
        node("Gemm", ["s", "w"], ["y"]),
    ]
    weights = [numpy_helper.from_array(floats(32, 32, seed=1) / 5, "w")]
    model = model_of(nodes, {"x": floats(*SHAPE)}, ["y"], weights)
    compiled = qg.quantize_and_compile(model, samples(), verify=False, progress=False)
    actual, again = (compiled(floats(*SHAPE)) for _ in range(2))
    assert np.abs(actual - again).max() < 0.1 * np.abs(actual).max()


# -- models that run whole


def positions() -> tuple[onnx.ModelProto, np.ndarray]:
    x = np.array([[0, 1, 2], [3, 0, 0]], np.float32)
    model = model_of([node("NonZero", ["x"], ["i"])], {"x": x}, ["i"])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    return model, x


def test_results_of_unknown_shape_come_from_onnxruntime() -> None:
    model, x = positions()
    np.testing.assert_array_equal(qg.compile(model)(x), np.array(np.nonzero(x)))


def test_a_whole_model_says_why_it_is_not_compiled() -> None:
    compiled = qg.compile(positions()[0])
    assert isinstance(compiled, qg.FallbackModel)
    assert "NonZero" in compiled.reasons[0] and "NonZero" in str(compiled.report)


def test_a_whole_model_describes_itself() -> None:
    compiled = qg.compile(positions()[0])
    assert [(i.name, i.shape, i.type) for i in compiled.get_inputs()] == [
        ("x", [2, 3], "tensor(float)")
    ]
    assert [(o.name, o.type) for o in compiled.get_outputs()] == [("i", "tensor(int64)")]


def test_an_input_of_a_whole_model_given_twice_is_refused() -> None:
    model, x = positions()
    with pytest.raises(qg.InputError, match="both by position and by name"):
        qg.compile(model)(x, x=x)


def test_sequences_come_back_as_lists() -> None:
    model = model_of([node("SplitToSequence", ["x"], ["s"])], {"x": floats(2, 3)}, [])
    info = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    model.graph.output.append(info)
    compiled = qg.compile(model)(floats(2, 3))
    np.testing.assert_array_equal(np.concatenate(compiled), floats(2, 3))


def test_wrong_feeds_of_a_whole_model_are_typed_errors() -> None:
    compiled = qg.compile(positions()[0])
    with pytest.raises(qg.FallbackError, match="cannot run"):
        compiled.run(None, {"x": floats(5)})
    with pytest.raises(qg.InputError, match="unknown output"):
        compiled.run(["j"], {"x": floats(2, 3)})


@pytest.mark.parametrize("options", [{}, {"max_drop": 0.1}, {"measure_speed": True}], ids=str)
def test_a_model_of_which_nothing_is_compiled_is_not_refused(options: Any) -> None:
    model, x = positions()
    compiled = qg.quantize_and_compile(model, [x], **options)
    assert isinstance(compiled, qg.FallbackModel)
    np.testing.assert_array_equal(compiled(x), np.nonzero(x))
    assert "nothing of this model is compiled" in str(compiled.report)
    assert "NonZero" in str(compiled.report)


def test_a_model_of_free_shapes_that_runs_whole_says_why(tmp_path: Path) -> None:
    model, _ = positions()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "L"
    compiled = qg.compile(model, num_threads=1)
    for length in (3, 5):
        np.testing.assert_array_equal(compiled(floats(2, length)), np.nonzero(floats(2, length)))
    (actual,) = compiled.report.fallback
    assert (actual.name, actual.backend) == ("(all)", "onnxruntime")
    assert "NonZero" in actual.reason
    with pytest.raises(qg.QuantglowError, match="NonZero"):
        compiled.export_bundle(tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_an_operator_that_onnxruntime_refuses_is_found_before_the_work() -> None:
    model = detector()
    model.graph.node[-1].op_type = "Unknown"
    model.graph.node[-1].domain = "my.own"
    model.opset_import.append(helper.make_opsetid("my.own", 1))
    with pytest.raises(qg.UnsupportedOpError, match=r"my\.own"):
        qg.quantize_and_compile(model, iter(lambda: pytest.fail("samples were read"), None))


def test_an_operator_nobody_knows_is_an_unsupported_one() -> None:
    model = model_of([node("Relu", ["x"], ["y"], domain="my.own")], {"x": floats(2)}, ["y"])
    model.opset_import.append(helper.make_opsetid("my.own", 1))
    with pytest.raises(qg.UnsupportedOpError, match=r"my\.own"):
        qg.compile(model)


def test_import_can_refuse_what_it_cannot_compile() -> None:
    with pytest.raises(qg.UnsupportedOpError, match="Hardmax"):
        qg.import_model(mixed_model(), fallback=False)


def test_free_dimensions_of_types_that_we_do_not_have_are_no_obstacle() -> None:
    info = helper.make_tensor_value_info("x", TensorProto.STRING, ["n", 2])
    result = helper.make_tensor_value_info("y", TensorProto.BOOL, ["n", 2])
    match = node("RegexFullMatch", ["x"], ["y"], pattern="a+")
    graph = helper.make_graph([match], "g", [info], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    compiled = qg.compile(model)(np.array([["aa", "b"]], object))
    np.testing.assert_array_equal(compiled, [[True, False]])


def test_a_model_too_large_for_one_message_is_a_typed_error() -> None:
    class Huge:
        def SerializeToString(self) -> bytes:
            raise ValueError("Message exceeds maximum size")

    with pytest.raises(qg.ModelError, match="2 GiB"):
        Source(Huge()).serialize()  # type: ignore[arg-type]


def test_a_rank_that_does_not_fit_is_an_input_error() -> None:
    """onnxruntime's ConvInteger ends the process over a scalar."""
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, None)
    y = helper.make_tensor_value_info("y", TensorProto.INT32, None)
    w = numpy_helper.from_array(np.ones((5, 7, 2, 2), np.int8), "w")
    graph = helper.make_graph([node("ConvInteger", ["x", "w"], ["y"])], "g", [x], [y], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    compiled = qg.compile(model, num_threads=1)
    with pytest.raises(InputError, match="do not fit"):
        compiled.run(None, {"x": np.zeros((), np.uint8)})
    (actual,) = compiled.run(None, {"x": np.ones((1, 7, 2, 2), np.uint8)})
    assert actual.tolist() == np.full((1, 5, 1, 1), 28).tolist()


def test_an_operator_without_inference_does_not_make_a_rank_wrong() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    kept = numpy_helper.from_array(np.array([True, False, True]), "kept")
    filling = {"imputed_value_floats": [2.0] * 3, "replaced_value_float": float("nan")}
    nodes = [
        node("Imputer", ["x"], ["filled"], domain="ai.onnx.ml", **filling),
        node("Compress", ["filled", "kept"], ["y"], axis=1),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [kept])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    compiled = qg.compile(model, num_threads=1)
    (actual,) = compiled.run(None, {"x": np.array([[1, 5, np.nan]], np.float32)})
    assert actual.tolist() == [[1, 2]]
