"""ONNX networks whose constants or paddings bring infinities."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node
Feeds = dict[str, NDArray[Any]]
WIDTH = 16


def attention(biased: list[onnx.NodeProto], **known: NDArray[Any]) -> onnx.ModelProto:
    """Self-attention of x [1, n, WIDTH] between two products; ``biased`` makes ``masked`` of the
    ``scores`` [1, n, n].
    """
    rng = np.random.default_rng(1)
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="a"),
        node("Transpose", ["a"], ["at"], perm=[0, 2, 1]),
        node("MatMul", ["a", "at"], ["raw"], name="raw"),
        node("Mul", ["raw", "scale"], ["scores"], name="scores"),
        *biased,
        node("Softmax", ["masked"], ["p"], axis=-1, name="p"),
        node("MatMul", ["p", "a"], ["mixed"], name="mixed"),
        node("Relu", ["mixed"], ["r"], name="r"),
        node("MatMul", ["r", "v"], ["y"], name="y"),
    ]
    weights = {n: rng.normal(size=(WIDTH, WIDTH)) / math.sqrt(WIDTH) for n in ("w", "v")}
    known |= {n: np.asarray(a, np.float32) for n, a in {**weights, "scale": 0.25}.items()}
    return model_of(nodes, {"x": [1, "n", WIDTH]}, ["y"], known)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    outputs: list[str],
    known: dict[str, NDArray[Any]],
    opset: int = 17,
) -> onnx.ModelProto:
    """Inputs are float, "d" int64, and "c" conditions."""
    kinds = {"d": TensorProto.INT64, "c": TensorProto.BOOL}
    graph = helper.make_graph(
        nodes,
        "masked",
        [
            helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), dims)
            for n, dims in inputs.items()
        ],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in known.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def table(low: float = -math.inf) -> onnx.ModelProto:
    """A bias for the distance ``d`` of two places; class 0 is hidden."""
    biased = [
        node("Gather", ["tab", "d"], ["bias"], name="bias"),
        node("Add", ["scores", "bias"], ["masked"], name="masked"),
    ]
    values = np.random.default_rng(2).normal(size=8).astype(np.float32)
    values[0] = low
    model = attention(biased, tab=values)
    model.graph.input.append(helper.make_tensor_value_info("d", TensorProto.INT64, [1, "n", "n"]))
    return model


def causal(low: float = -math.inf, added: bool = True) -> onnx.ModelProto:
    """A mask that hides what comes later, of any length: ``low`` added to the scores or in their
    place.
    """
    nodes = [
        node("Shape", ["x"], ["size"], start=1, end=2),
        node("Squeeze", ["size"], ["n"]),
        node("Range", ["zero", "n", "one"], ["places"]),
        node("Unsqueeze", ["places", "axis"], ["rows"]),
        node("Less", ["rows", "places"], ["later"]),
    ]
    if added:
        nodes.append(node("Where", ["later", "low", "nothing"], ["bias"], name="bias"))
        nodes.append(node("Add", ["scores", "bias"], ["masked"], name="masked"))
    else:
        nodes.append(node("Where", ["later", "low", "scores"], ["masked"], name="masked"))
    known = {"zero": np.int64(0), "one": np.int64(1), "axis": np.array([1])}
    return attention(nodes, **known, low=np.float32(low), nothing=np.float32(0))  # type: ignore[arg-type]


def chosen(low: float = -math.inf) -> onnx.ModelProto:
    """The values that a condition hides."""
    model = attention(
        [node("Where", ["c", "low", "scores"], ["masked"], name="masked")],
        low=np.float32(low),  # type: ignore[arg-type]
    )
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, [1, "n", "n"]))
    return model


def scaled(low: float, is_subtracted: bool = False) -> onnx.ModelProto:
    """A multiple of what a fed mask ``m`` [1, n, n] of 0 and 1 hides."""
    biased = [
        node("Sub", ["one", "m"], ["hidden"], name="hidden"),
        node("Mul", ["hidden", "low"], ["bias"], name="bias"),
        node("Sub" if is_subtracted else "Add", ["scores", "bias"], ["masked"], name="masked"),
    ]
    factor = np.float32(-low if is_subtracted else low)
    model = attention(biased, one=np.float32(1), low=factor)  # type: ignore[arg-type]
    model.graph.input.append(helper.make_tensor_value_info("m", TensorProto.FLOAT, [1, "n", "n"]))
    return model


def padded(low: float = -math.inf) -> onnx.ModelProto:
    """Places beyond the sequence, with no share of the attention, that are cut off again."""
    biased = [
        node("Pad", ["scores", "pads", "low"], ["wide"], name="wide"),
        node("Softmax", ["wide"], ["shares"], axis=-1, name="shares"),
        node("Slice", ["shares", "starts", "ends", "axes"], ["kept"], name="kept"),
        node("Log", ["kept"], ["masked"], name="masked"),
    ]
    known = {"pads": np.array([0, 0, 2, 0, 0, 1]), "low": np.float32(low)}
    known |= {"starts": np.array([2]), "ends": np.array([-1]), "axes": np.array([2])}
    return attention(biased, **known)  # type: ignore[arg-type]


ATTENTIONS: dict[str, Callable[..., onnx.ModelProto]] = {
    "table": table,
    "causal": causal,
    "causal choice": lambda low=-math.inf: causal(low, added=False),
    "chosen": chosen,
    "padded": padded,
}
FINITE_ATTENTIONS: dict[str, Callable[[float], onnx.ModelProto]] = {
    **ATTENTIONS,
    "scaled": scaled,
    "subtracted": lambda low: scaled(low, is_subtracted=True),
}


def feeds(model: onnx.ModelProto, length: int, seed: int = 0, hidden: bool = True) -> Feeds:
    """A sample of a length; ``hidden``: some places of it, never all of a row."""
    rng = np.random.default_rng(seed)
    built: Feeds = {"x": rng.normal(size=(1, length, WIDTH)).astype(np.float32)}
    names = {value.name for value in model.graph.input}
    square = (1, length, length)
    ours = np.eye(length, dtype=bool)[None]
    if "d" in names:
        built["d"] = np.where(ours, 1, rng.integers(0 if hidden else 1, 8, square))
    if "m" in names:
        built["m"] = np.float32(1) - ((rng.random(square) < 0.3 * hidden) & ~ours)
    if "c" in names:
        built["c"] = (rng.random(square) < 0.3 * hidden) & ~ours
    return built


def pooling(opset: int = 17) -> onnx.ModelProto:
    """An image framed by -inf before a maximum over windows that may lie in the frame, and over
    whole rows; and by inf before a minimum.
    """
    rng = np.random.default_rng(5)
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="a", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["ar"]),
        node("Pad", ["ar", "pads", "low"], ["framed"], name="framed"),
        node("MaxPool", ["framed"], ["top"], name="top", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["top", "w2"], ["b"], name="b"),
        node("Pad", ["a", "pads", "high"], ["above"], name="above"),
        node("ReduceMin", ["above"], ["least"], name="least", axes=[2, 3], keepdims=1),
        node("Conv", ["least", "w2"], ["c"], name="c"),
        node("Add", ["b", "c"], ["sum"], name="sum"),
        node("Conv", ["sum", "w3"], ["y"], name="y"),
    ]
    shapes = {"w1": (4, 3, 3, 3), "w2": (4, 4, 1, 1), "w3": (4, 4, 1, 1)}
    known: dict[str, Any] = {
        n: (rng.normal(size=s) / math.sqrt(math.prod(s[1:]))).astype(np.float32)
        for n, s in shapes.items()
    }
    known |= {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    known |= {"low": np.float32(-math.inf), "high": np.float32(math.inf)}
    return model_of(nodes, {"x": [1, 3, 6, 8]}, ["y"], known, opset)


def targets(selected: bool = True) -> onnx.ModelProto:
    """Classes of the rows that a condition chooses, and NaN for other rows, padded by NaN.  Layer
    "z" reads them with 0 instead of NaN, or as they are if not ``selected``.
    """
    rng = np.random.default_rng(7)
    nodes = [
        node("Gemm", ["x", "w"], ["a"], name="a"),
        node("Relu", ["a"], ["ar"], name="ar"),
        node("Gemm", ["ar", "v"], ["b"], name="b"),
        node("ConstantOfShape", ["half"], ["none"], value=NAN, name="none"),
        node("Pad", ["none", "pads", "nan"], ["absent"], name="absent"),
        node("Where", ["c", "b", "absent"], ["chosen"], name="chosen"),
        node("Transpose", ["chosen"], ["turned"], perm=[1, 0], name="turned"),
        node("Gather", ["turned", "order"], ["y"], name="y"),
        node("IsNaN", ["chosen"], ["is_nan"]),
        node("Where", ["is_nan", "zero", "chosen"], ["known"], name="known"),
        node("Relu", ["known" if selected else "chosen"], ["kr"], name="kr"),
        node("Gemm", ["kr", "w"], ["z"], name="z"),
    ]
    weights = {n: rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 4 for n in "wv"}
    known: dict[str, Any] = {"half": np.array([1, WIDTH - 1]), "pads": np.array([0, 0, 0, 1])}
    known |= {"nan": np.float32(math.nan), "zero": np.float32(0), "order": np.array([3, 0, 1])}
    return model_of(nodes, {"x": ["n", WIDTH], "c": ["n", 1]}, ["y", "z"], {**weights, **known})


NAN = numpy_helper.from_array(np.float32([math.nan]))


def classes() -> onnx.ModelProto:
    """Classes that are never chosen: -inf in a bias, behind a Relu 0; and log-probabilities."""
    rng = np.random.default_rng(6)
    nodes = [
        node("Gemm", ["x", "w", "bias"], ["a"], name="a"),
        node("Relu", ["a"], ["r"], name="r"),
        node("Gemm", ["r", "v", "bias"], ["b"], name="b"),
        node("LogSoftmax", ["b"], ["y"], name="y", axis=-1),
    ]
    bias = rng.normal(size=WIDTH).astype(np.float32)
    bias[[3, 7]] = -math.inf
    weights = {n: rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 4 for n in "wv"}
    return model_of(nodes, {"x": ["n", WIDTH]}, ["y", "b"], {**weights, "bias": bias})
