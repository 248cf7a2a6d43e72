"""Values computed at import are the values computed at run time."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.ir.graph.node import Constant
from tests.unit.importer.onnx.onnx_models import Const, by_onnxruntime, floats, single

LENGTHS = Const(np.array([2, 4, 1], np.int32))
CONSTANT_NODES = {
    "MaxPool": single(
        "MaxPool", Const(floats(2, 1, 8)), kernel_shape=[2], pads=[0, 1], strides=[1], ceil_mode=1
    ),
    "GlobalMaxPool": single("GlobalMaxPool", Const(floats(2, 3, 5))),
    "Conv": single("Conv", Const(floats(1, 2, 5, 4)), Const(floats(3, 2, 2, 2)), strides=[2, 1]),
    "Einsum": single("Einsum", Const(floats(3, 5)), Const(floats(5, 2)), equation="ij,jk->ki"),
    "Resize": single(
        "Resize",
        Const(floats(1, 2, 2, 4)),
        Const(np.zeros(0, np.float32)),
        Const(np.zeros(0, np.float32)),
        Const(np.array([1, 2, 1, 1])),
        mode="cubic",
        coordinate_transformation_mode="pytorch_half_pixel",
        exclude_outside=1,
    ),
    "GRU": single(
        "GRU",
        Const(floats(4, 3, 2)),
        Const(floats(1, 6, 2, seed=1)),
        Const(floats(1, 6, 2, seed=2)),
        None,
        LENGTHS,
        direction="reverse",
        hidden_size=2,
        outputs=2,
    ),
}


@pytest.mark.parametrize("name", CONSTANT_NODES)
def test_nodes_of_known_floats_are_as_in_onnxruntime(name: str) -> None:
    model, _ = CONSTANT_NODES[name]
    compiled = qg.compile(model, num_threads=1).run(None, {})
    for f, w in zip(compiled, by_onnxruntime(model, {}), strict=True):
        assert f.shape == w.shape
        np.testing.assert_allclose(f, w, rtol=1e-5, atol=1e-6)


def test_known_floats_are_computed_at_import() -> None:
    graph = qg.import_model(CONSTANT_NODES["Conv"][0])
    assert [type(node) for node in graph.nodes] == [Constant]


def test_weights_that_a_node_of_constants_makes_are_known_to_those_that_want_weights() -> None:
    nodes = [
        onnx.helper.make_node("Mul", ["w", "s"], ["scaled"]),
        onnx.helper.make_node("Conv", ["x", "scaled"], ["y"]),
    ]
    constants = {"w": floats(3, 2, 1, 1), "s": floats(3, 1, 1, 1)}
    model = single("Conv", floats(1, 2, 4, 4), Const(constants["w"]))[0]
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    model.graph.input[0].name = "x"
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    graph = qg.import_model(model, fallback=False)
    assert "Mul" not in str(graph)


@pytest.mark.parametrize("opset", [10, 12, 13])
def test_the_mask_of_a_dropout_is_as_in_onnxruntime(opset: int) -> None:
    """Everything is kept; before opset 12, which does not say so, onnxruntime makes it."""
    model, feeds = single("Dropout", floats(2, 3), opset=opset, outputs=2)
    model.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.BOOL
    y, mask = qg.compile(model, num_threads=1).run(None, feeds)
    np.testing.assert_array_equal(y, feeds["x0"])
    np.testing.assert_array_equal(mask, by_onnxruntime(model, feeds)[1])
