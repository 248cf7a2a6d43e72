"""Shape arithmetic folds away; free dimensions are asked for; Ifs of known condition vanish."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantglow.importer.onnx import import_model
from quantglow.ir.ops import Conv, Gemm, Pad, Transpose
from quantglow.support.errors import ModelError
from tests.unit.importer.onnx.onnx_models import (
    assert_agrees,
    by_onnxruntime,
    floats,
    model_of,
    weights,
)

node = helper.make_node


def initializer(name: str, array: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(array, name)


def constant(name: str, *values: int) -> onnx.NodeProto:
    return node("Constant", [], [name], value=initializer(name, np.array(values, np.int64)))


def torch_padded_conv(dims: tuple[int | str, ...] = (1, 2, 7, 9)) -> onnx.ModelProto:
    """The nodes of torch's exporter around F.pad: pads are computed from the shape of the input."""
    nodes = [
        node("Shape", ["x"], ["dims"]),
        constant("two", 2),
        node("Gather", ["dims", "two"], ["height"], axis=0),
        constant("four", 4),
        node("Mod", ["height", "four"], ["rest"]),
        node("Sub", ["four", "rest"], ["bottom"]),
        constant("zero", 0),
        node("Concat", ["zero", "zero", "zero", "bottom"], ["given"], axis=0),
        node("ConstantOfShape", ["four"], ["filler"], value=initializer("v", np.array([0]))),
        node("Concat", ["given", "filler"], ["all"], axis=0),
        constant("halves", -1, 2),
        node("Reshape", ["all", "halves"], ["table"]),
        constant("minus_one", -1),
        constant("minus_large", -(2**63) + 1),
        node("Slice", ["table", "minus_one", "minus_large", "zero", "minus_one"], ["flipped"]),
        node("Transpose", ["flipped"], ["columns"], perm=[1, 0]),
        node("Reshape", ["columns", "minus_one"], ["flat"]),
        node("Cast", ["flat"], ["pads"], to=TensorProto.INT64),
        node("Constant", [], ["fill"], value=initializer("f", np.array(0.5, np.float32))),
        node("Pad", ["x", "pads", "fill"], ["padded"], mode="constant"),
        node("Conv", ["padded", "w"], ["y"]),
    ]
    feeds = {"x": floats(1, 2, 7, 9)}
    model = model_of(nodes, feeds, ["y"], [initializer("w", weights(3, 2, 3, 3).array)])
    for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, dims, strict=True):
        if isinstance(size, str):
            dim.dim_param = size
    return model


def test_pads_computed_from_the_shape_become_attributes() -> None:
    model = torch_padded_conv()
    graph = import_model(model)
    kinds = [type(n) for n in graph.compute_nodes()]
    assert kinds == [Pad, Transpose, Conv, Transpose]


def test_padded_conv_agrees_with_onnxruntime() -> None:
    assert_agrees(torch_padded_conv(), {"x": floats(1, 2, 7, 9)})


def test_flattening_by_shape_and_gather_agrees_with_onnxruntime() -> None:
    nodes = [
        node("Shape", ["x"], ["dims"]),
        constant("zero", 0),
        node("Gather", ["dims", "zero"], ["batch"]),
        constant("rest", -1),
        node("Concat", ["batch", "rest"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["y"]),
    ]
    feeds = {"x": floats(2, 3, 4)}
    assert_agrees(model_of(nodes, feeds, ["y"]), feeds)


@pytest.mark.parametrize("attributes", [{"start": 1}, {"end": -1}, {"start": -3, "end": 3}])
def test_shape_takes_a_part_of_the_dimensions(attributes: dict[str, int]) -> None:
    nodes = [
        node("Shape", ["x"], ["dims"], **attributes),
        node("Cast", ["dims"], ["sizes"], to=TensorProto.FLOAT),
        node("ReduceSum", ["sizes"], ["factor"]),
        node("Mul", ["x", "factor"], ["y"]),
    ]
    feeds = {"x": floats(2, 3, 4, 5)}
    assert_agrees(model_of(nodes, feeds, ["y"]), feeds)


@pytest.mark.parametrize("condition", [True, False])
def test_if_of_known_condition_is_the_branch_it_takes(condition: bool) -> None:
    output = [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)]
    branches = {
        f"{name}_branch": helper.make_graph(
            [node("Mul", ["x", "k"], ["inner"])], name, [], output, [initializer("k", k)]
        )
        for name, k in (("then", np.float32(2)), ("else", np.float32(-3)))
    }
    nodes = [
        node("If", ["condition"], ["middle"], **branches),
        node("If", ["condition"], ["y"], **branches),
        node("Add", ["middle", "y"], ["z"]),
    ]
    feeds = {"x": floats(2, 3)}
    known = [initializer("condition", np.array(condition))]
    assert_agrees(model_of(nodes, feeds, ["z"], known), feeds)


@pytest.mark.parametrize("condition", [True, False])
def test_an_if_decided_at_run_time_gives_what_its_branch_gives(condition: bool) -> None:
    output = [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)]
    branches = {
        f"{name}_branch": helper.make_graph([node(op, ["x"], ["inner"])], name, [], output)
        for name, op in (("then", "Exp"), ("else", "Neg"))
    }
    model = model_of(
        [node("If", ["condition"], ["y"], **branches)],
        feeds := {"x": floats(2, 3), "condition": np.array(condition)},
        ["y"],
    )
    assert_agrees(model, feeds)


def test_nodes_no_output_needs_are_not_imported() -> None:
    nodes = [node("Relu", ["x"], ["y"]), node("NonZero", ["x"], ["unused"])]
    graph = import_model(model_of(nodes, {"x": floats(2, 3)}, ["y"]))
    assert [n.name for n in graph.compute_nodes()] == ["y"]


def test_a_free_batch_dimension_becomes_1() -> None:
    graph = import_model(torch_padded_conv(("N", 2, 7, 9)))
    assert graph.inputs[0].type.shape == (1, 2, 7, 9)


def test_other_free_dimensions_are_asked_for() -> None:
    with pytest.raises(ModelError, match=r"input 'x' .*\(N, 2, H, 9\).*input_shapes=\{'x'"):
        import_model(torch_padded_conv(("N", 2, "H", 9)))


def test_input_shapes_fix_free_dimensions() -> None:
    graph = import_model(torch_padded_conv(("N", 2, "H", 9)), {"x": (2, 2, 5, 9)})
    assert graph.outputs[0][1].type.shape == (2, 3, 6, 7)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"images": (1, 2, 7, 9)}, r"names \['images'\].*inputs are \['x'\]"),
        ({"x": (1, 3, 7, 9)}, r"declares \(N, 2, H, 9\)"),
        ({"x": (1, 2, 7)}, r"declares \(N, 2, H, 9\)"),
        ({"x": (-1, 2, 7, 9)}, "integers of at least 0"),
        ({"x": (1, 2, "7", 9)}, "integers of at least 0"),
    ],
)
def test_wrong_input_shapes_are_refused(inputs: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        import_model(torch_padded_conv(("N", 2, "H", 9)), inputs)


def test_a_symbol_has_one_size_in_all_inputs() -> None:
    model = model_of(
        [node("Add", ["a", "b"], ["y"])], {"a": floats(2, 3), "b": floats(2, 3)}, ["y"]
    )
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    graph = import_model(model, {"a": (5, 3)})
    assert [i.type.shape for i in graph.inputs] == [(5, 3), (5, 3)]


def test_names_of_helpers_yield_to_names_of_the_model() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["y"]),
        node("Relu", ["y"], ["x:nhwc"]),
        node("Conv", ["x:nhwc", "w"], ["y:nchw"]),
    ]
    feeds = {"x": floats(1, 2, 5, 5)}
    known = [initializer("w", weights(2, 2, 3, 3).array)]
    assert_agrees(model_of(nodes, feeds, ["y:nchw"], known), feeds)


def test_spatial_nodes_keep_the_name_of_their_value() -> None:
    graph = import_model(torch_padded_conv())
    assert isinstance(graph.by_name("y"), Conv)


def test_gemm_weights_are_columns_last() -> None:
    nodes = [node("Gemm", ["x", "w"], ["y"], transB=1)]
    known = [initializer("w", weights(5, 3).array)]
    graph = import_model(model_of(nodes, {"x": floats(2, 3)}, ["y"], known))
    built = graph.by_name("y")
    assert isinstance(built, Gemm)
    np.testing.assert_array_equal(built.w.evaluate(), weights(5, 3).array.T)


def test_an_initializer_may_be_listed_as_input() -> None:
    built = torch_padded_conv()
    built.ir_version = 3
    built.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, (3, 2, 3, 3)))
    assert [i.name for i in import_model(built).inputs] == ["x"]


def test_an_initializer_need_not_be_listed_in_old_models() -> None:
    built = torch_padded_conv()
    built.ir_version = 3
    assert_agrees(built, {"x": floats(1, 2, 7, 9)})


def test_local_functions_are_inlined() -> None:
    body = [node("Relu", ["a"], ["b"]), node("Neg", ["b"], ["c"])]
    function = helper.make_function(
        "local", "Twist", ["a"], ["c"], body, [helper.make_opsetid("", 17)]
    )
    feeds = {"x": floats(2, 3)}
    model = model_of([node("Twist", ["x"], ["y"], domain="local")], feeds, ["y"])
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.ir_version = 8
    assert_agrees(model, feeds)


def test_outputs_may_be_inputs_and_constants() -> None:
    model = model_of(
        [node("Relu", ["x"], ["y"]), node("Identity", ["k"], ["z"])],
        {"x": floats(2, 3)},
        ["y", "z"],
        [initializer("k", floats(4))],
    )
    assert_agrees(model, {"x": floats(2, 3)})


def test_dequantized_weights_fold_to_floats() -> None:
    known = [
        initializer("q", np.arange(-6, 6, dtype=np.int8).reshape(3, 4)),
        initializer("scale", np.array([0.5, 1, 2, 4], np.float32)),
        initializer("zero", np.array([0, 1, -1, 2], np.int8)),
    ]
    nodes = [
        node("DequantizeLinear", ["q", "scale", "zero"], ["w"], axis=1),
        node("MatMul", ["x", "w"], ["y"]),
    ]
    feeds = {"x": floats(2, 3)}
    assert_agrees(model_of(nodes, feeds, ["y"], known), feeds)


def test_softmax_of_a_constant_keeps_the_meaning_of_its_opset() -> None:
    known = [initializer("k", floats(2, 3, 4))]
    nodes = [node("Softmax", ["k"], ["s"], axis=1), node("Mul", ["x", "s"], ["y"])]
    feeds = {"x": floats(2, 3, 4)}
    assert_agrees(model_of(nodes, feeds, ["y"], known, opset=11), feeds)


def test_half_precision_models_run_in_float32() -> None:
    known = [initializer("w", floats(3, 4).astype(np.float16))]
    feeds = {"x": floats(2, 3).astype(np.float16)}
    model = model_of([node("MatMul", ["x", "w"], ["y"])], feeds, ["y"], known)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    graph = import_model(model)
    expected = by_onnxruntime(model, feeds)[0]
    ours = graph.by_name("y").evaluate(feeds["x"].astype(np.float32), known_weights(known))
    np.testing.assert_allclose(ours, expected, rtol=1e-2, atol=1e-2)


def known_weights(known: list[onnx.TensorProto]) -> np.ndarray:
    return numpy_helper.to_array(known[0]).astype(np.float32)
