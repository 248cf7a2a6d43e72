"""Models whose shapes become unknown somewhere are compiled up to there."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.importer.onnx import open_model, split
from tests.fuzz.parts import maps
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats, model_of

pytestmark = pytest.mark.usefixtures("in_parts")

node = helper.make_node
SHAPE = (1, 3, 8, 8)
LATE = {"sel", "index", "picked", "tiled", "y"}
"""Values of ``detector`` with unknown shapes."""


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def detector() -> onnx.ModelProto:
    """Conv, Relu (output "f"), boxes and scores of every pixel, NonMaxSuppression (output "sel"),
    the pixels that it selects (output "y").  A Reshape computes its shape at run time."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["f"]),
        node("Transpose", ["f"], ["t"], perm=[0, 2, 3, 1]),
        node("Shape", ["f"], ["sizes"]),
        node("Gather", ["sizes", "one"], ["channels"]),
        node("Concat", ["one", "rest", "channels"], ["wanted"], axis=0),
        node("Reshape", ["t", "wanted"], ["flat"]),
        node("Slice", ["flat", "zero", "four", "axis"], ["boxes"]),
        node("Slice", ["flat", "four", "five", "axis"], ["score"]),
        node("Transpose", ["score"], ["scores"], perm=[0, 2, 1]),
        node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["sel"]),
        node("Gather", ["sel", "two"], ["index"], axis=1),
        node("Gather", ["flat", "index"], ["picked"], axis=1),
        node("Tile", ["picked", "repeats"], ["tiled"]),
        node("Add", ["tiled", "channels_float"], ["y"]),
        node("Cast", ["channels"], ["channels_float"], to=TensorProto.FLOAT),
    ]
    nodes[-2:] = nodes[:-3:-1]
    known = {
        "w": floats(6, 3, 3, 3),
        "one": integers(1),
        "rest": integers(-1),
        "zero": integers(0),
        "four": integers(4),
        "five": integers(5),
        "axis": integers(2),
        "most": integers(10),
        "overlap": np.array([0.5], np.float32),
        "least": np.array([0.1], np.float32),
        "two": np.array(2, np.int64),
        "repeats": integers(1, 2, 1),
    }
    initializers = [numpy_helper.from_array(array, name) for name, array in known.items()]
    model = model_of(nodes, {"x": floats(*SHAPE)}, ["f", "y"], initializers)
    selected = helper.make_tensor_value_info("sel", TensorProto.INT64, None)
    model.graph.output.insert(1, selected)
    return model


def test_the_tail_reads_known_outputs_of_the_head() -> None:
    """Otherwise it would compute them again, and perhaps round differently."""
    labels = {"classlabels_strings": ["a", "b", "c"], "domain": "ai.onnx.ml"}
    nodes = [
        node("Softmax", ["w"], ["known"]),
        node("Identity", ["known"], ["y"]),
        node("ZipMap", ["y"], ["maps"], **labels),
        node("Relu", ["x"], ["r"]),
    ]
    initializers = [numpy_helper.from_array(floats(5, 3), "w")]
    model = model_of(nodes, {"x": floats(2, 3)}, ["y", "r"], initializers)
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    model.graph.output.append(maps("maps"))
    parts = split(open_model(model))
    assert parts is not None
    assert [info.name for info in parts.tail.graph.input] == ["y"]
    assert [item.op_type for item in parts.tail.graph.node] == ["ZipMap"]


def test_a_known_output_of_strings_is_beside_a_compiled_head() -> None:
    table = {"keys_int64s": [0, 2], "values_strings": ["no", "yes"], "domain": "ai.onnx.ml"}
    nodes = [node("LabelEncoder", ["codes"], ["words"], **table), node("Swish", ["x"], ["y"])]
    x, codes = floats(2, 3), numpy_helper.from_array(integers(2, 0), "codes")
    model = model_of(nodes, {"x": x}, ["y"], [codes], opset=24)
    model.ir_version = 10
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    words = helper.make_tensor_value_info("words", TensorProto.STRING, [2])
    model.graph.output.append(words)
    for compiled in (qg.compile(model), qg.quantize_and_compile(model, [x] * 2, verify=False)):
        y, actual = compiled.run(None, {"x": x})
        np.testing.assert_allclose(y, x / (1 + np.exp(-x)), rtol=1e-5)
        assert list(actual) == ["yes", "no"]


def test_the_parts_give_what_onnxruntime_gives() -> None:
    compiled = qg.compile(detector())
    for seed in range(3):
        x = floats(*SHAPE, seed=seed)
        for value, expected in zip(compiled(x), by_onnxruntime(detector(), {"x": x}), strict=True):
            assert (value.shape, value.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4)


def test_all_that_can_be_compiled_is() -> None:
    compiled = qg.compile(detector())
    assert isinstance(compiled, qg.PartlyCompiledModel)
    assert not compiled.head.build.segments
    assert {node.name for node in compiled.report.fallback} >= LATE


def test_only_wanted_outputs_are_computed() -> None:
    compiled = qg.compile(detector())
    x = floats(*SHAPE)
    (early,) = compiled.run(["f"], {"x": x})
    np.testing.assert_array_equal(early, compiled(x)[0])


def test_inputs_and_outputs_are_those_of_the_model() -> None:
    compiled = qg.compile(detector())
    assert [(i.name, i.shape) for i in compiled.get_inputs()] == [("x", list(SHAPE))]
    assert [o.name for o in compiled.get_outputs()] == ["f", "sel", "y"]


def test_the_part_before_the_cut_is_quantized() -> None:
    compiled = qg.quantize_and_compile(detector(), [floats(*SHAPE, seed=i) for i in range(3)])
    assert isinstance(compiled, qg.PartlyCompiledModel)
    kinds = {n.name: n.operands[0].type.quant for n in compiled.head.graph.nodes if n.operands}
    assert kinds["f"] is not None


def test_the_tail_runs_on_the_quantized_head() -> None:
    compiled = qg.quantize_and_compile(detector(), [floats(*SHAPE, seed=i) for i in range(3)])
    actual, (early, *_) = (
        compiled(floats(*SHAPE)),
        by_onnxruntime(detector(), {"x": floats(*SHAPE)}),
    )
    assert np.abs(actual[0] - early).max() < 0.05 * np.abs(early).max()
    assert actual[1].shape[1] == 3


def quantized_under(max_drop: float, **options: Any) -> qg.PartlyCompiledModel:
    samples = [floats(*SHAPE, seed=i) for i in range(3)]
    compiled = qg.quantize_and_compile(
        detector(), samples, max_drop=max_drop, verify=False, **options
    )
    assert isinstance(compiled, qg.PartlyCompiledModel)
    return compiled


def test_without_validation_the_contract_is_about_the_compiled_part() -> None:
    precisions = []
    for max_drop in (0.9, 0.0):
        graph = quantized_under(max_drop).head.graph
        precisions.append(sum(node.type.quant is not None for node in graph.nodes))
    assert precisions[0] > precisions[1] == 0


def test_the_validation_function_gets_the_whole_model() -> None:
    shown: list[str] = []

    def validation(model: Any) -> float:
        shown.append(type(model).__name__)
        return float(len(model(floats(*SHAPE))) == 3)

    quantized_under(0.0, validation_fn=validation)
    assert shown == ["PartlyCompiledModel"] * 2


def test_the_best_model_of_a_broken_contract_is_whole() -> None:
    figures = itertools.chain([1.0], itertools.repeat(0.5))
    with pytest.raises(qg.AccuracyDropError) as caught:
        quantized_under(0.1, validation_fn=lambda model: next(figures))
    assert isinstance(caught.value.best, qg.PartlyCompiledModel)


@pytest.mark.parametrize("options", [{}, {"max_drop": 0.1}, {"measure_speed": True}], ids=str)
def test_a_model_without_a_part_to_compile_is_not_refused(options: Any) -> None:
    model = model_of([node("NonZero", ["x"], ["i"])], {"x": floats(2, 3)}, ["i"])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    compiled = qg.quantize_and_compile(model, [floats(2, 3)], **options)
    assert type(compiled) is qg.FallbackModel
    np.testing.assert_array_equal(compiled(floats(2, 3)), np.nonzero(floats(2, 3)))
    assert "nothing of this model is compiled" in str(compiled.report)
    assert "NonZero" in str(compiled.report)


def test_a_tail_that_onnxruntime_refuses_is_found_before_the_work() -> None:
    model = detector()
    model.graph.node[-1].op_type = "Unknown"
    model.graph.node[-1].domain = "my.own"
    model.opset_import.append(helper.make_opsetid("my.own", 1))
    with pytest.raises(qg.UnsupportedOpError, match=r"my\.own"):
        qg.quantize_and_compile(model, iter(lambda: pytest.fail("samples were read"), None))


def test_the_tail_computes_shapes_itself() -> None:
    parts = split(open_model(detector()))
    assert parts is not None
    assert "Shape" in {n.op_type for n in parts.tail.graph.node}


@pytest.mark.parametrize("is_fixed", [True, False])
def test_the_tail_knows_the_shapes_of_what_it_reads_where_the_model_fixes_them(
    is_fixed: bool,
) -> None:
    model = detector()
    if not is_fixed:
        model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    parts = split(open_model(model), {"x": SHAPE})
    assert parts is not None
    read = [i.type.tensor_type for i in parts.tail.graph.input if i.name != "x"]
    assert read and {kind.HasField("shape") for kind in read} == {is_fixed}


def test_both_parts_are_valid_models() -> None:
    parts = split(open_model(detector()))
    assert parts is not None
    for part in (parts.head, parts.tail):
        open_model(part)


def test_a_model_that_begins_with_unknown_shapes_is_not_cut() -> None:
    model = model_of([node("NonZero", ["x"], ["i"])], {"x": floats(2, 3)}, ["i"])
    assert split(open_model(model)) is None


def test_a_saved_model_runs_again(tmp_path: Path) -> None:
    compiled = qg.quantize_and_compile(detector(), [floats(*SHAPE, seed=i) for i in range(3)])
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm")
    for value, expected in zip(loaded(floats(*SHAPE)), compiled(floats(*SHAPE)), strict=True):
        np.testing.assert_array_equal(value, expected)
    assert (loaded.reasons, loaded.report.fallback) == (
        compiled.reasons,
        compiled.report.fallback,
    )


def test_a_tail_without_an_output_of_the_model_is_refused(tmp_path: Path) -> None:
    compiled = qg.compile(detector())
    replace(compiled, output_names=("nowhere",)).save(tmp_path / "m.qgm")
    with pytest.raises(qg.FileFormatError, match=r"no output\(s\) \['nowhere'\]"):
        qg.load(tmp_path / "m.qgm")


def test_a_tail_that_is_no_model_is_refused(tmp_path: Path) -> None:
    compiled = qg.compile(detector())
    replace(compiled, tail=b"no model").save(tmp_path / "m.qgm")
    with pytest.raises(qg.FileFormatError, match="tail is damaged"):
        qg.load(tmp_path / "m.qgm")


def test_a_free_batch_stays_free_behind_the_cut(tmp_path: Path) -> None:
    model = model_of(
        [node("Relu", ["x"], ["r"]), node("NonZero", ["r"], ["i"])],
        {"x": floats(2, 3)},
        ["i"],
    )
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    compiled = qg.compile(model)
    assert isinstance(compiled, qg.PartlyCompiledModel)
    compiled.save(tmp_path / "m.qgm")
    for runs in (compiled, qg.load(tmp_path / "m.qgm")):
        for batch in (1, 4):
            x = floats(batch, 3)
            np.testing.assert_array_equal(runs(x), np.array(np.nonzero(np.maximum(x, 0))))


def test_profiles_and_diagnoses_are_those_of_what_can_be_compiled() -> None:
    data = [floats(*SHAPE, seed=i) for i in range(3)]
    profile = qg.profile(detector(), data)
    assert "scores" in profile and "sel" not in profile
    assert qg.quantize_and_compile(detector(), profile, verify=False).head.profile == profile
    assert {"c", "f"} & {layer.name for layer in qg.diagnose(detector(), data).layers}


SIZES = [(1, 3, 8, 8), (1, 3, 9, 7), (1, 3, 12, 8)]


def free_detector() -> onnx.ModelProto:
    """``detector`` with free height and width."""
    model = detector()
    for axis, name in ((2, "H"), (3, "W")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    return model


def outputs_agree(compiled: Any, shape: tuple[int, ...], tolerance: float = 1e-4) -> None:
    x = floats(*shape)
    for value, expected in zip(compiled(x), by_onnxruntime(free_detector(), {"x": x}), strict=True):
        assert (value.shape, value.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)


def test_nothing_worth_compiling_runs_whole() -> None:
    model = model_of([node("NonZero", ["x"], ["i"])], {"x": floats(2, 3)}, ["i"])
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "L"
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    compiled = qg.compile(model, num_threads=1)
    for length in (3, 5):
        x = floats(2, length)
        np.testing.assert_array_equal(compiled(x), np.nonzero(x))


@pytest.mark.slow_variants
@pytest.mark.parametrize("wrap", [list, iter], ids=["list", "iterator"])
def test_the_part_before_the_cut_is_int8_at_every_shape(wrap: Any, tmp_path: Path) -> None:
    samples = [floats(*shape, seed=i) for i in range(2) for shape in SIZES]
    compiled = qg.quantize_and_compile(free_detector(), wrap(samples), num_threads=1)
    assert isinstance(compiled, qg.PartlyCompiledModel)
    assert compiled.head.profile.samples == len(samples)
    compiled.save(tmp_path / "int8.qgm")
    loaded = qg.load(tmp_path / "int8.qgm", num_threads=1)
    for shape in SIZES:
        x = floats(*shape)
        kinds = {n.name: n for n in compiled.head.specialisations.at({"x": x}).graph.nodes}
        assert kinds["f"].operands[0].type.quant is not None
        (expected, *_) = by_onnxruntime(free_detector(), {"x": x})
        actual, again = compiled(x), loaded(x)
        assert np.abs(actual[0] - expected).max() < 0.05 * np.abs(expected).max()
        for one, other in zip(actual, again, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_profile_tells_where_a_free_model_is_cut(tmp_path: Path) -> None:
    profile = qg.profile(free_detector(), [floats(*SIZES[1])], progress=False)
    compiled = qg.quantize_and_compile(free_detector(), profile, num_threads=1)
    assert isinstance(compiled, qg.PartlyCompiledModel)
    assert len(compiled(floats(*SIZES[2]))) == 3


def test_the_report_says_why_a_shape_runs_whole() -> None:
    model = model_of([node("NonZero", ["x"], ["i"])], {"x": floats(2, 3)}, ["i"])
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "L"
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    compiled = qg.compile(model, num_threads=1)
    compiled(floats(2, 3))
    (actual,) = compiled.report.fallback
    assert (actual.name, actual.backend) == ("(all)", "onnxruntime")
    assert "NonZero" in actual.reason


def test_a_free_tail_is_in_the_report_once() -> None:
    samples = [floats(*shape, seed=i) for i, shape in enumerate(SIZES)]
    compiled = qg.quantize_and_compile(free_detector(), samples, num_threads=1, verify=False)
    names = [node.name for node in compiled.report.fallback]
    compiled(samples[0])
    assert [node.name for node in compiled.report.fallback] == names
    assert len(set(names)) == len(names) and set(names) >= LATE
