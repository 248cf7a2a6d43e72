"""Models with integer weights and float activations: the numbers of the weights stay exactly, all
else becomes int8."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import quantglow as qg
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from quantglow.ir.ops import GroupedMatMul
from quantglow.ir.ops.arithmetic import dequantize, is_integer
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.groupwise import unpack_codes
from quantglow.support.arrays import Array
from tests.support.effort import moderate

LIMITS = {T.INT4: (-8, 7), T.UINT4: (0, 15), T.INT8: (-128, 127), T.UINT8: (0, 255)}
WIDTH = 16
"""Channels of the values around the stored weights."""


@dataclass(repr=False)
class Stored:
    """A model with one DequantizeLinear of weights ``w``, and the nodes that read them."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    tensors: list[onnx.TensorProto] = field(default_factory=list)
    feeds: dict[str, Array] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "; ".join(onnx.printer.to_text(node) for node in self.nodes)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Hypothesis shows the fields of dataclasses, tables of weights here, without this."""
        printer.text(repr(self))

    def add(self, kind: str, inputs: list[str], result: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [result], name=result, **attributes))
        return result

    def dequantize(self, **attributes: Any) -> str:
        names = ["codes", "scales", *(t.name for t in self.tensors if t.name == "points")]
        return self.add("DequantizeLinear", names, "w", **attributes)

    def proto(self, outputs: list[str]) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in self.feeds.items()
        ]
        arrays = [numpy_helper.from_array(array, name) for name, array in self.arrays.items()]
        ends = [helper.make_tensor_value_info(name, T.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "stored", inputs, ends, [*arrays, *self.tensors])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def weights(self) -> Array:
        """The numbers of the weights, by their definition."""
        (node,) = (n for n in self.nodes if n.op_type == "DequantizeLinear")
        operands = [t for t in self.proto([]).graph.initializer if t.name in node.input]
        end = helper.make_tensor_value_info("w", T.FLOAT, None)
        graph = helper.make_graph([node], "w", [], [end], operands)
        alone = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        return np.asarray(ReferenceEvaluator(alone).run(None, {})[0])


FORMS: dict[str, tuple[tuple[int, ...], str, dict[str, Any]]] = {
    "Conv": ((WIDTH, WIDTH, 3, 3), "Conv", {"pads": [1] * 4}),
    "Conv of groups": ((WIDTH, WIDTH // 4, 3, 3), "Conv", {"pads": [1] * 4, "group": 4}),
    "depthwise Conv": ((WIDTH, 1, 3, 3), "Conv", {"pads": [1] * 4, "group": WIDTH}),
    "Conv of 1x1": ((WIDTH, WIDTH, 1, 1), "Conv", {}),
    "ConvTranspose": ((WIDTH, WIDTH, 2, 2), "ConvTranspose", {"strides": [2, 2]}),
    "MatMul": ((WIDTH, WIDTH), "MatMul", {}),
    "MatMul, weights first": ((WIDTH, WIDTH), "MatMul", {}),
    "MatMul of images": ((5, WIDTH), "MatMul", {}),
    "Gemm": ((WIDTH, WIDTH), "Gemm", {}),
    "Gemm, turned": ((WIDTH, WIDTH), "Gemm", {"transB": 1}),
    "Gemm, scaled": ((WIDTH, WIDTH), "Gemm", {"alpha": 0.5}),
    "Gather": ((20, WIDTH), "Gather", {}),
    "Gather along 1": ((WIDTH, 20), "Gather", {"axis": 1}),
}


@st.composite
def stored_models(draw: st.DrawFn) -> tuple[str, Stored]:
    """Layers of float weights around one with stored weights."""
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    form = draw(st.sampled_from(sorted(FORMS)))
    shape, kind, attributes = FORMS[form]
    model = Stored()
    place, name = model.arrays, draw(st.sampled_from(["bias", ""]))

    def normal(*sizes: int, scale: float = 0.3) -> Array:
        return (random.standard_normal(sizes) * scale).astype(np.float32)

    def layer(x: str, result: str) -> str:
        place[f"{result}:w"] = normal(WIDTH, WIDTH, 1, 1)
        return model.add("Relu", [model.add("Conv", [x, f"{result}:w"], f"{result}:c")], result)

    # The parameters of the weights.
    onnx_type = draw(st.sampled_from(sorted(LIMITS)))
    low, high = LIMITS[onnx_type]
    axis = draw(st.sampled_from([None, *range(len(shape))]))
    sizes: tuple[int, ...] = () if axis is None else (shape[axis],)
    layout = {} if axis is None else {"axis": axis}
    if axis is not None and shape[axis] > 1 and draw(st.booleans()):
        block = draw(st.sampled_from([2, 3, 8, 16]))
        layout["block_size"] = block
        sizes = tuple(-(-d // block) if i == axis else d for i, d in enumerate(shape))
    place["scales"] = random.uniform(0.5, 1.5, sizes).astype(np.float32) / np.float32(high * 8)
    codes = random.integers(low, high + 1, shape)
    model.tensors.append(helper.make_tensor("codes", onnx_type, shape, codes.reshape(-1).tolist()))
    if draw(st.booleans()) or low == 0:
        middle = (low + high + 1) // 2
        points = random.integers(middle - 2, middle + 3, sizes).reshape(-1).tolist()
        model.tensors.append(helper.make_tensor("points", onnx_type, sizes, points))
    w = model.dequantize(**layout)

    # The model.
    if kind == "Gather":
        model.feeds["i"] = random.integers(-20, 20, (1, 6, 6)).astype(np.int64)
        rows = model.add("Gather", [w, "i"], "stored", **attributes)
        perm = [0, 3, 1, 2] if "axis" not in attributes else [1, 0, 2, 3]
        y = model.add("Transpose", [rows], "images", perm=perm)
        return form, with_end(model, layer(layer(y, "second"), "last"), random)
    model.feeds["x"] = random.standard_normal((1, WIDTH, 5, 5)).astype(np.float32)
    x = layer("x", "first")
    if kind in ("Conv", "ConvTranspose"):
        inputs = [x, w, name] if name else [x, w]
        place.update({"bias": normal(WIDTH)} if name else {})
        y = model.add(kind, inputs, "stored", **attributes)
    else:
        y = product(model, form, x, w, attributes, draw(st.booleans()), normal(WIDTH))
    return form, with_end(model, layer(y, "last"), random)


def product(
    model: Stored, form: str, x: str, w: str, attributes: dict[str, Any], has_bias: bool, b: Array
) -> str:
    """A product of images [1, C, 5, 5] with the weights, as images."""
    if form == "MatMul of images":
        built = model.add("MatMul", [x, w], "stored")
        model.arrays["narrow"] = np.full((WIDTH, 5), 0.3, np.float32) * np.sign(b)[:, None]
        return model.add("MatMul", [built, "narrow"], "images")
    model.arrays["matrix"] = np.array([WIDTH, 25])
    model.arrays["images:shape"] = np.array([1, WIDTH, 5, 5])
    x = model.add("Reshape", [x, "matrix"], "columns")
    if form == "MatMul, weights first":
        y = model.add("MatMul", [w, x], "stored")
    else:
        x = model.add("Transpose", [x], "rows", perm=[1, 0])
        inputs = [x, w]
        if has_bias and form.startswith("Gemm"):
            model.arrays["bias"] = b
            inputs.append("bias")
        y = model.add("MatMul" if form == "MatMul" else "Gemm", inputs, "stored", **attributes)
        y = model.add("Transpose", [y], "back", perm=[1, 0])
    return model.add("Reshape", [y, "images:shape"], "images")


def with_end(model: Stored, x: str, random: np.random.Generator) -> Stored:
    """The model with a last layer, whose result is the output."""
    model.arrays["end:w"] = (random.standard_normal((4, WIDTH, 1, 1)) * 0.3).astype(np.float32)
    model.add("Conv", [x, "end:w"], "y")
    return model


def numbers_of(graph: Graph) -> list[Array]:
    """The numbers of all Constants of a graph, sorted."""
    reals = []
    for node in graph.nodes:
        if isinstance(node, GroupedMatMul):
            reals.append(grouped_numbers(node))
        elif isinstance(node, Constant) and node.type.quant is not None:
            reals.append(dequantize(node.value, node.type.params))
        elif isinstance(node, Constant):
            reals.append(node.value)
    return [np.sort(array, axis=None) for array in reals]


def grouped_numbers(node: Any) -> Array:
    """The weights of a product in groups, without those that fill up the last one."""
    codes = unpack_codes(node.w.value, node.bits).astype(np.float32)
    points = node.midpoint if node.zero_points is None else node.zero_points.value[..., None]
    weights: Array = (codes - points) * node.scales.value[..., None]
    return weights.reshape(len(weights), -1)[:, : node.x.type.shape[1]]


@moderate
@given(stored_models())
def test_weights_stay_and_all_else_is_int8(drawn: tuple[str, Stored]) -> None:
    form, model = drawn
    proto, feeds = model.proto(["y"]), model.feeds
    profile = qg.profile(proto, [feeds], progress=False)
    int8 = qg.quantize(proto, profile, data=[feeds])
    expected = model.weights() * np.float32(0.5 if form == "Gemm, scaled" else 1)
    values = numbers_of(int8)
    (actual,) = interpret(int8, feeds, [lambda _, y: values.append(np.sort(y, axis=None))])
    if form.startswith("Gather"):
        expected = np.take(expected, feeds["i"], FORMS[form][2].get("axis", 0))
    exact = np.sort(expected, axis=None)
    assert any(a.shape == exact.shape and (a == exact).all() for a in values)
    layers = [n for n in int8.nodes if isinstance(n, Contraction) and is_integer(n.x.type)]
    assert {"last", "y"} <= {node.name.split(":")[0] for node in layers}
    (y,) = interpret(qg.import_model(proto), feeds)
    assert np.square(actual - y).mean() <= 0.02 * np.square(y).mean()
