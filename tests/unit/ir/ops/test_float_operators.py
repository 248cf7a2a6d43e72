"""The float form of every operator, against onnxruntime running the one ONNX node."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from quantglow.ir import ops
from quantglow.ir.graph.node import Node
from quantglow.support.arrays import Array
from quantglow.transforms.lowering.rules import LEAVES
from tests.generators.unary_functions import FUNCTIONS, Declared
from tests.unit.ir.ops.exact import constant, floats

ROOT = Path(__file__).parents[4]
NHWC, NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
OPSET = 20
SHAPE = (2, 3, 5, 4)
"""NCHW, as ONNX has it."""


@dataclass(frozen=True)
class Case:
    """An ONNX node on arrays, and ours; ``image``: ours takes and gives NHWC."""

    op: str
    ours: Callable[..., Node]
    arrays: tuple[Array, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    image: bool = False
    tolerance: float = 1e-6


CONDITION = np.array([[True], [False], [True]])


def drawn(*shape: int, low: float = -3.0, high: float = 3.0) -> Array:
    return np.random.default_rng(sum(shape)).uniform(low, high, shape).astype(np.float32)


def onnxruntime_result(case: Case) -> Array:
    # An empty array stands for an absent optional operand.
    feeds = {f"x{i}": np.asarray(a) for i, a in enumerate(case.arrays) if np.size(a)}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    names = [f"x{i}" if f"x{i}" in feeds else "" for i in range(len(case.arrays))]
    node = helper.make_node(case.op, names, ["y"], **case.attributes)
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "one", infos, [result])
    imports = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, feeds)[0])


def unary(form: Declared) -> Case:
    extremes = np.array([0.0, -0.0, 30.0, -30.0, 100.0, -100.0, 1e-20], np.float32)
    x = np.concatenate([drawn(60), extremes])
    if form.name == "Exp":
        x = drawn(50)
    x = np.abs(x) + np.float32(1e-3) if form.positive else x
    return Case(form.name, lambda a: form.node("y", a), (x,), form.attributes, tolerance=2e-6)


def gelu(approximate: str) -> Case:
    kind = Declared(ops.Gelu, {"approximate": approximate == "tanh"})
    return replace(unary(kind), attributes={"approximate": approximate})


def binary(op: str, low: float = -3.0) -> Case:
    cls = getattr(ops, op)
    arrays = (drawn(2, 3, 4, low=low), drawn(3, 1))
    return Case(op, lambda a, b: cls(name="y", x=a, y=b), arrays, tolerance=2e-6)


def hwio(w: Array) -> Node:
    return constant(w.transpose(2, 3, 1, 0).copy(), name="w")


def conv(group: int, strides: Any, pads: Any, dilations: Any) -> Case:
    w, b = drawn(6, 3 // group, 2, 3), drawn(6)
    attributes = {"group": group, "strides": strides, "pads": pads, "dilations": dilations}

    def ours(x: Node, *_: Node) -> Node:
        return ops.Conv(name="y", x=x, w=hwio(w), b=constant(b), **attributes)

    return Case("Conv", ours, (drawn(*SHAPE), w, b), attributes, True, 1e-5)


def conv_transpose(group: int, strides: Any, pads: Any, dilations: Any, extra: Any) -> Case:
    w, b = drawn(3, 2, 2, 3), drawn(2 * group)
    attributes = {"group": group, "strides": strides, "pads": pads, "dilations": dilations}
    attributes["output_padding"] = extra
    # ONNX has [C, O/group, KH, KW]; ours has all O channels last.
    parts = np.split(w, group)
    joined = np.concatenate([p.transpose(2, 3, 0, 1) for p in parts], axis=3).copy()

    def ours(x: Node, *_: Node) -> Node:
        return ops.ConvTranspose(
            name="y", x=x, w=constant(joined, name="w"), b=constant(b), **attributes
        )

    return Case("ConvTranspose", ours, (drawn(*SHAPE), w, b), attributes, True, 1e-5)


def pool(op: str, **attributes: Any) -> Case:
    cls = getattr(ops, op)
    shown = {"kernel_shape": attributes["kernel"], **attributes}
    del shown["kernel"]
    shown = {k: int(v) if isinstance(v, bool) else v for k, v in shown.items()}
    return Case(op, lambda x: cls(name="y", x=x, **attributes), (drawn(*SHAPE),), shown, True)


def reduce(op: str, axes: tuple[int, ...], keepdims: bool) -> Case:
    cls = getattr(ops, op)
    arrays = (drawn(2, 3, 4, 5), np.array(axes, np.int64))
    return Case(
        op,
        lambda x, *_: cls(name="y", x=x, axes=axes, keepdims=keepdims),
        arrays,
        {"keepdims": int(keepdims)},
        tolerance=1e-5,
    )


def resize(mode: str, coordinates: str, sizes: tuple[int, int], rounding: str) -> Case:
    scales = (sizes[0] / SHAPE[2], sizes[1] / SHAPE[3])
    arrays = (drawn(*SHAPE), np.zeros(0, np.float32), np.zeros(0, np.float32))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attributes["nearest_mode"] = rounding

    def ours(x: Node, *_: Node) -> Node:
        return ops.Resize(
            name="y", x=x, sizes=sizes, scales=scales, mode=mode, coordinates=coordinates,
            rounding=rounding,
        )  # fmt: skip

    full = np.array([*SHAPE[:2], *sizes], np.int64)
    return Case("Resize", ours, (*arrays, full), attributes, True, 1e-5)


def batch_normalization() -> Case:
    gamma, beta, mean = drawn(3), drawn(3, low=-1), drawn(3, high=2)
    var = drawn(3, low=0.5)
    names = ("gamma", "beta", "mean", "var")
    values = (gamma, beta, mean, var)

    def ours(x: Node, *_: Node) -> Node:
        parameters = {n: constant(v, name=n) for n, v in zip(names, values, strict=True)}
        return ops.BatchNormalization(name="y", x=x, epsilon=1e-3, **parameters)

    attributes = {"epsilon": 1e-3}
    return Case("BatchNormalization", ours, (drawn(*SHAPE), *values), attributes, True, 1e-5)


def lrn(size: int) -> Case:
    attributes: dict[str, Any] = {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 2.0}
    return Case(
        "LRN",
        lambda x: ops.LRN(name="y", x=x, **attributes),
        (drawn(2, 6, 3, 2),),
        attributes,
        True,
        1e-5,
    )


CASES = [
    *(unary(form) for form in FUNCTIONS if form.importable and form.kind.since <= OPSET),
    gelu("none"),
    gelu("tanh"),
    Case(
        "Clip",
        lambda x, *_: ops.Clip(name="y", x=x, low=-1.0, high=0.5),
        (drawn(50), np.float32(-1), np.float32(0.5)),
    ),
    *(binary(op) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")),
    binary("Pow", low=0.1),
    Case(
        "PRelu",
        lambda x, s: ops.PRelu(name="y", x=x, slope=s),
        (drawn(2, 3, 4), drawn(3, 1)),
    ),
    conv(1, (1, 1), (0, 0, 0, 0), (1, 1)),
    conv(3, (2, 1), (1, 0, 2, 1), (1, 1)),
    conv(1, (1, 2), (2, 2, 1, 3), (2, 2)),
    conv_transpose(1, (1, 1), (0, 0, 0, 0), (1, 1), (0, 0)),
    conv_transpose(3, (2, 3), (1, 0, 0, 1), (1, 1), (1, 2)),
    conv_transpose(1, (2, 1), (0, 2, 1, 2), (2, 1), (0, 0)),
    Case("MatMul", lambda a, b: ops.MatMul(name="y", x=a, y=b), (drawn(2, 1, 3, 4), drawn(3, 4, 2)),
         tolerance=1e-5),
    Case("Gemm", lambda a, b, c: ops.Gemm(name="y", x=a, w=b, b=c),
         (drawn(3, 4), drawn(4, 2), drawn(2)), tolerance=1e-5),
    pool("MaxPool", kernel=(2, 3), strides=(2, 1), pads=(1, 0, 0, 2)),
    pool("MaxPool", kernel=(2, 2), strides=(2, 3), pads=(0, 1, 1, 0), ceil_mode=True),
    pool("MaxPool", kernel=(2, 2), dilations=(2, 2), strides=(1, 1), pads=(0, 0, 1, 1)),
    pool("AveragePool", kernel=(2, 3), strides=(2, 1), pads=(1, 0, 0, 2)),
    pool("AveragePool", kernel=(2, 3), strides=(2, 1), pads=(1, 0, 0, 2), count_include_pad=True),
    pool("AveragePool", kernel=(3, 2), strides=(2, 2), pads=(1, 0, 1, 1), ceil_mode=True),
    pool(
        "AveragePool", kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), ceil_mode=True,
        count_include_pad=True,
    ),
    *(reduce(op, (1, 3), True) for op in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")),
    reduce("ReduceMean", (2,), False),
    reduce("ReduceSum", (0, 1, 2, 3), False),
    *(
        resize(mode, coordinates, sizes, "round_prefer_floor")
        for mode in ("nearest", "linear")
        for coordinates in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
        for sizes in ((10, 8), (3, 1), (7, 9))
    ),
    *(resize("nearest", "half_pixel", (8, 3), r) for r in ("round_prefer_ceil", "floor", "ceil")),
    batch_normalization(),
    *(lrn(size) for size in (1, 3, 5)),
    Case("Softmax", lambda x: ops.Softmax(name="y", x=x), (drawn(3, 7, high=90.0),)),
    Case(
        "LayerNormalization",
        lambda x, g, b: ops.LayerNormalization(name="y", x=x, gamma=g, beta=b, epsilon=1e-3),
        (drawn(3, 7, low=-1.0, high=90.0), drawn(7), drawn(7)), {"epsilon": 1e-3}, tolerance=1e-5,
    ),
    Case(
        "LayerNormalization",
        lambda x, g: ops.LayerNormalization(name="y", x=x, gamma=g),
        (drawn(2, 3, 1), drawn(1)),
    ),
    Case(
        "LogSoftmax", lambda x: ops.LogSoftmax(name="y", x=x), (drawn(3, 7, high=90.0),),
        tolerance=1e-5,
    ),
    Case(
        "Transpose", lambda x: ops.Transpose(name="y", x=x, perm=(2, 0, 1)), (drawn(2, 3, 4),),
        {"perm": (2, 0, 1)},
    ),
    Case(
        "Expand", lambda x, *_: ops.Expand(name="y", x=x, shape=(2, 3, 4)),
        (drawn(3, 1), np.array((2, 3, 4), np.int64)),
    ),
    Case(
        "Reshape", lambda x, *_: ops.Reshape(name="y", x=x, shape=(4, 6)),
        (drawn(2, 3, 4), np.array((4, 6), np.int64)),
    ),
    Case(
        "Concat", lambda *parts: ops.Concat(name="y", parts=parts, axis=1),
        (drawn(2, 1, 4), drawn(2, 3, 4)), {"axis": 1},
    ),
    Case(
        "Slice",
        lambda x, *_: ops.Slice(name="y", x=x, starts=(1, 3), sizes=(2, 2), steps=(1, -2)),
        (drawn(3, 4), *(np.array(v, np.int64) for v in ((1, 3), (3, -9), (0, 1), (1, -2)))),
    ),
    Case(
        "Where",
        lambda _, x, y: ops.Where(name="y", condition=constant(CONDITION), x=x, y=y),
        (CONDITION, drawn(2, 1, 4), drawn(3, 1)),
    ),
    Case(
        "Pad", lambda x, *_: ops.Pad(name="y", x=x, before=(1, 0), after=(0, 2), value=1.5),
        (drawn(3, 4), np.array((1, 0, 0, 2), np.int64), np.float32(1.5)),
    ),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda i: f"{i}-{CASES[i].op}")
def test_the_reference_agrees_with_onnxruntime(number: int) -> None:
    case = CASES[number]
    arrays = list(map(np.asarray, case.arrays))
    if case.image:
        arrays[0] = arrays[0].transpose(NHWC).copy()
    leaves = [floats(a.shape, f"x{i}") for i, a in enumerate(arrays)]
    node = case.ours(*leaves)
    values = [
        o.value if isinstance(o, ops.Constant) else arrays[int(o.name[1:])] for o in node.operands
    ]
    actual = node.evaluate(*values)
    assert (actual.shape, actual.dtype) == (node.type.shape, np.float32)
    expected = onnxruntime_result(case)
    actual = actual.transpose(NCHW) if case.image else actual
    np.testing.assert_allclose(actual, expected, rtol=case.tolerance, atol=case.tolerance)


YOUNGER = {"Swish"}
"""Operators that ``OPSET`` does not have; this file compares them with their formula."""
COVERED = {case.op for case in CASES} | YOUNGER
QUANTIZED = "tests/unit/ir/ops/test_quantized_operators.py"
GROUPED = "tests/unit/importer/onnx/test_import_weight_groups.py"
NODE_CASES = "tests/matrix/test_node_cases.py"

ELSEWHERE = {
    "Quantize": QUANTIZED,
    "Dequantize": QUANTIZED,
    "Rescale": QUANTIZED,
    "Table": QUANTIZED,
    "QuantizeRows": GROUPED,
    "GroupedMatMul": GROUPED,
    "Gather": NODE_CASES,
    "Scatter": NODE_CASES,
    "TopK": NODE_CASES,
    "AntialiasedResize": "tests/unit/importer/onnx/test_import_windows.py",
    "Elementwise": "tests/matrix/test_llvm_functions.py",
    "RowMap": "tests/matrix/test_llvm_rows.py",
    "External": "tests/unit/ir/ops/test_external.py",
    "Loop": "tests/unit/ir/ops/test_loop.py",
}
"""Operators that are not one ONNX node on floats, and the tests that compare them."""


def test_every_operator_is_compared() -> None:
    operators = ops.OPS.keys() - {kind.__name__ for kind in LEAVES}
    assert operators - ELSEWHERE.keys() == COVERED & operators


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_test_elsewhere_names_the_operator(name: str) -> None:
    assert re.search(rf"\b{name}\b", (ROOT / ELSEWHERE[name]).read_text(encoding="utf-8"))


def test_swish_is_x_times_sigmoid() -> None:
    x = drawn(50)
    node = ops.Swish(name="y", x=floats(x.shape), alpha=1.7)
    expected = x / (1 + np.exp(-1.7 * x.astype(np.float64)))
    np.testing.assert_allclose(node.evaluate(x), expected, rtol=1e-6, atol=1e-7)
