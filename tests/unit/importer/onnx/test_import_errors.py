"""Wrong models end in a typed error with cause and remedy; unsupported nodes are listed at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.importer.onnx import import_model, open_model
from quantglow.importer.onnx.nodes.context import IMPORTERS, importer
from quantglow.importer.onnx.reading.light_models import source_hash
from quantglow.interpreter import interpret
from quantglow.support.errors import ModelError, QuantglowError, UnsupportedOpError
from tests.unit.importer.onnx.onnx_models import (
    Const,
    floats,
    ints,
    model_of,
    single,
    small_model,
    weights,
)

node = helper.make_node


def test_importing_leaves_the_model_alone() -> None:
    model = small_model()
    before = model.SerializeToString(deterministic=True)
    import_model(model)
    assert model.SerializeToString(deterministic=True) == before


def test_a_second_importer_of_one_operator_is_refused() -> None:
    before = IMPORTERS["Relu"]
    with pytest.raises(TypeError, match="Relu has an importer already"):
        importer("Relu")(before)
    assert IMPORTERS["Relu"] is before


def test_other_types_are_refused() -> None:
    with pytest.raises(ModelError, match="not int"):
        import_model(3)  # type: ignore[arg-type]


@given(st.data())
def test_altered_bytes_give_a_sound_graph_or_a_typed_error(data: st.DataObject) -> None:
    damaged = bytearray(small_model().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        damaged[position] = data.draw(st.integers(0, 255))
    try:
        graph = import_model(bytes(damaged))
    except QuantglowError:
        return
    feeds = {i.name: np.zeros(i.type.shape, i.type.dtype.numpy) for i in graph.inputs}
    types = [node.type for _, node in graph.outputs]
    with np.errstate(all="ignore"):
        results = interpret(graph, feeds)
    assert [(r.shape, r.dtype) for r in results] == [(t.shape, t.dtype.numpy) for t in types]


@pytest.mark.parametrize(("opset", "remedy"), [(6, "version_converter"), (9999, "upgrade onnx")])
def test_opsets_out_of_range_are_refused(opset: int, remedy: str) -> None:
    model = small_model()
    model.opset_import[0].version = opset
    with pytest.raises(ModelError, match=remedy):
        import_model(model)


def test_functions_that_call_themselves_are_refused() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    body = [node("Loopy", ["a"], ["b"], domain="local")]
    model = model_of([node("Loopy", ["x"], ["y"], domain="local")], {"x": floats(2)}, ["y"])
    model.functions.append(helper.make_function("local", "Loopy", ["a"], ["b"], body, opsets))
    model.opset_import.append(opsets[1])
    with pytest.raises(ModelError, match=r"local\.Loopy.* call themselves"):
        import_model(model)


def test_all_unsupported_nodes_are_reported_at_once() -> None:
    nodes = [
        node("NonZero", ["x"], ["indices"], name="first"),
        node("Cast", ["indices"], ["floats"], to=TensorProto.FLOAT),
        node("Det", ["x"], ["d"], name="second"),
        node("Pad", ["x", "d"], ["c"], name="third"),
        node("Fancy", ["c"], ["f"], name="fourth", domain="com.example"),
        node("Relu", ["f"], ["y"]),
        node("Upsample", ["x"], ["z"], name="fifth", scales=[1.0, 2.0]),
    ]
    model = model_of(nodes, {"x": floats(3, 3)}, ["y", "floats", "z"], opset=9)
    model.graph.node[6].op_type = "Relu"
    del model.graph.node[6].attribute[:]
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    model.opset_import[0].version = 13
    with pytest.raises(UnsupportedOpError) as caught:
        import_model(model)
    assert [line.split(":")[0] for line in caught.value.problems] == [
        "node 'first' (NonZero)",
        "node 'second' (Det)",
        "node 'third' (Pad)",
        "node 'fourth' (com.example.Fancy)",
    ]


LONGS = np.arange(3)


@pytest.mark.parametrize(
    ("built", "reason"),
    [
        (single("Conv", floats(1, 2, 5, 5), floats(2, 2, 3, 3)), "'x1' is computed at run time"),
        (single("Conv", floats(1, 2, *(3,) * 4), weights(2, 2, *(1,) * 4)), "4 spatial axes"),
        (single("Cast", floats(2), to=TensorProto.UINT64), "casts to uint64"),
        (single("Dropout", floats(2), None, Const(np.array(True))), "training_mode"),
        (single("Resize", floats(1, 1, 4, 4), None, None, ints(1, 1, 2, 2), mode="cubic"), "cubic"),
        (single("Resize", floats(1, 1, 4, 4), None, None, ints(1, 2, 4, 4)), "channel axis"),
        (single("Expand", floats(1), ints(2**20, 2**20)), "would have shape"),
        (single("Tile", floats(1), ints(2**40)), "elements"),
        (single("Pad", floats(3), ints(3, 0), mode="reflect"), "reflect pads wider"),
        (single("Pad", LONGS, ints(1, 0), Const(np.array(2**53 + 1))), "pads of 9007199254740993"),
        (single("RandomNormal", shape=[2]), "no importer"),
        (single("MaxPool", floats(1, 1, 4), outputs=2, kernel_shape=[2]), r"\['y1'\]"),
        (
            single("BatchNormalization", floats(2, 3), *[weights(3)] * 4, training_mode=1),
            "training_mode",
        ),
    ],
)
def test_nodes_that_cannot_be_compiled_have_a_reason(built: tuple, reason: str) -> None:
    with pytest.raises(UnsupportedOpError, match=reason):
        import_model(built[0])


def test_an_embedding_is_looked_up_at_run_time() -> None:
    model = model_of(
        [node("Gather", ["k", "ids"], ["y"], name="embed")], {"ids": np.arange(3)}, ["y"]
    )
    table = floats(4, 2)
    model.graph.initializer.append(numpy_helper.from_array(table, "k"))
    (actual,) = interpret(import_model(model), {"ids": np.array([2, -1, 0])})
    np.testing.assert_array_equal(actual, table[[2, 3, 0]])


@pytest.mark.parametrize(
    "built",
    [
        single("Conv", floats(1, 2, 5, 5), weights(2, 3, 3, 3)),
        single("Conv", floats(1, 2, 5, 5), weights(2, 2, 3, 3), strides=[0, 1]),
        single("Conv", floats(1, 2, 5, 5), weights(2, 2, 3, 3), pads=[1, 1]),
        single("MaxPool", floats(1, 2, 5, 5), kernel_shape=[9, 9]),
        single("Reshape", floats(2, 3), ints(4, 2)),
        single("Reshape", floats(2, 3), ints(-1, 4)),
        single("Transpose", floats(2, 3), perm=[0, 0]),
        single("Concat", floats(2, 3), floats(3, 2), axis=0),
        single("Add", floats(2, 3), floats(4)),
        single("MatMul", floats(2, 3), weights(4, 5)),
        single("Unsqueeze", floats(2), ints(7)),
        single("Split", floats(4), ints(1, 2), outputs=2),
        single("Pad", floats(2, 3), ints(1, 1)),
        single("Pad", floats(2, 3), ints(1, 1, 1, 1), None, ints(1, -1)),
        single("Slice", floats(2, 3), ints(0, 0), ints(1, 1), ints(1, -1)),
        single("ScatterElements", floats(3, 4), np.zeros((2, 3), np.int64), floats(3, 2)),
        single("Softmax", floats(2), axis=5),
    ],
)
def test_ill_typed_nodes_are_named(built: tuple) -> None:
    with pytest.raises(ModelError, match="the_node"):
        import_model(built[0])


def with_added_constant(model: onnx.ModelProto, constant: onnx.TensorProto) -> onnx.ModelProto:
    """The model with ``constant`` added to its output by a Constant node."""
    end = model.graph.output[0].name
    model.graph.node.add().CopyFrom(node("Constant", [], ["late"], value=constant))
    model.graph.node.add().CopyFrom(node("Add", [end, "late"], ["sum"]))
    model.graph.output[0].name = "sum"
    return model


def test_a_tensor_of_an_attribute_that_lacks_data_is_refused() -> None:
    constant = helper.make_tensor("short", TensorProto.FLOAT, (1,), [0.5])
    constant.dims[0] = 9
    built = with_added_constant(small_model(), constant)
    with pytest.raises(ModelError, match="'short' is malformed"):
        source_hash(built, {})


@pytest.mark.parametrize("element", [-1, 2147483647])
def test_an_input_of_a_type_that_onnx_does_not_have_is_refused(element: int) -> None:
    model = small_model()
    model.graph.input[0].type.tensor_type.elem_type = element
    with pytest.raises(ModelError, match="ONNX does not have"):
        import_model(model)


def test_an_input_that_no_memory_holds_is_refused() -> None:
    single_model = single("Abs", floats(2, 3))[0]
    single_model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 2**62
    with pytest.raises(ModelError, match=r"input 'x0' of shape .* elements. Remedy"):
        import_model(single_model)


def test_lrn_of_a_scalar_is_refused() -> None:
    with pytest.raises(ModelError, match=r"LRN.*channels"):
        import_model(single("LRN", np.ones((), np.float32), size=5)[0])


def test_a_pool_of_immense_windows_is_refused() -> None:
    wide = {"kernel_shape": [1, 2**40], "pads": [0, 2**40 - 1, 0, 2**40 - 1]}
    with pytest.raises(ModelError, match="may be 65536 wide"):
        import_model(single("AveragePool", floats(1, 2, 3, 4), **wide)[0])


NAMES: dict[str, Callable[[onnx.ModelProto], str]] = {
    "input": lambda model: model.graph.input[0].name,
    "tensor": lambda model: model.graph.initializer[0].name,
    "attribute": lambda model: "alpha",
    "domain": lambda model: model.opset_import[1].domain,
    "dimension": lambda model: model.graph.input[0].type.tensor_type.shape.dim[0].dim_param,
    "graph": lambda model: model.graph.name,
}


def with_names() -> onnx.ModelProto:
    """A model with a name in every place of ``NAMES``, and a text for people."""
    model = single("Gemm", floats(2, 3), weights(3, 4), weights(4), alpha=0.5)[0]
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "the_batch"
    model.graph.name = "the_graph"
    model.doc_string = "the_words"
    helper.set_model_props(model, {"the_key": "the_value"})
    return model


def damaged(model: onnx.ModelProto, name: str) -> bytes:
    """The file with bytes that are no UTF-8 for a name."""
    return bytes(model.SerializeToString().replace(name.encode(), b"\xff" * len(name)))


@pytest.mark.parametrize("of", NAMES)
def test_names_that_are_no_text_are_refused(of: str) -> None:
    model = with_names()
    with pytest.raises(ModelError, match="is not UTF-8"):
        qg.compile(damaged(model, NAMES[of](model)))


@pytest.mark.parametrize("text", ["the_words", "the_value"])
def test_texts_for_people_may_be_in_any_encoding(text: str) -> None:
    texts = open_model(damaged(with_names(), text)).metadata
    assert all(isinstance(known, str) for known in (*texts, *texts.values()))


@pytest.mark.parametrize("heads", [(1, 0), (0, 1), (0, 0), (2**62, 1), (1, 2**40), (-1, 1)])
def test_heads_that_onnxruntime_would_divide_by_are_refused(heads: tuple[int, int]) -> None:
    """The numbers are 0 in int32, and the process would end."""
    x = floats(1, 7, 1)
    model, _ = single("Attention", x, x, x, opset=23, q_num_heads=heads[0], kv_num_heads=heads[1])
    with pytest.raises(ModelError, match=r"'the_node' \(Attention\): (q|kv)_num_heads is"):
        qg.compile(model)


def test_a_split_into_more_parts_than_memory_holds_is_refused() -> None:
    """onnx's inference makes a list of so many sizes."""
    model, _ = single("Split", floats(6), opset=18, num_outputs=2**31 - 1)
    with pytest.raises(ModelError, match=r"'the_node' \(Split\): num_outputs is 2147483647"):
        qg.compile(model)


@pytest.mark.parametrize("inputs", [-1, -5, -(2**31), 2**62])
def test_batch_dimensions_that_shapes_do_not_have_are_refused(inputs: int) -> None:
    """Shape inference, also that of onnxruntime, reads beyond the shape."""
    x, at = floats(4, 4), np.zeros((4, 4), np.int64)
    model, _ = single("GatherND", x, at, opset=13, batch_dims=inputs)
    with pytest.raises(ModelError, match=rf"'the_node' \(GatherND\): batch_dims is {inputs}"):
        qg.compile(model)


@pytest.mark.parametrize("widths", [[9, -1], [-1, 9], [2**62, 2**62]])
def test_numbers_of_columns_that_nothing_has_are_refused(widths: list[int]) -> None:
    """onnxruntime allocates their sum, and ends the process (damaged file of seed 370010945)."""
    model, _ = single("FeatureVectorizer", floats(0, 9), floats(0, 9), inputdimensions=widths)
    model.graph.node[0].domain = "ai.onnx.ml"
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    with pytest.raises(ModelError, match=r"'the_node' \(FeatureVectorizer\): inputdimensions is"):
        qg.compile(model)


@pytest.mark.parametrize("inputs", [0, 1, -1])
def test_a_split_into_fewer_parts_than_outputs_is_refused(inputs: int) -> None:
    """onnx's inference reads a size for each output."""
    model, _ = single("Split", floats(6), opset=18, num_outputs=inputs)
    model.graph.node[0].output.append("more")
    with pytest.raises(ModelError, match=rf"'the_node' \(Split\): num_outputs is {inputs}"):
        qg.compile(model)
