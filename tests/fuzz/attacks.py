"""Model files with malicious numbers: sizes, nesting, and functions that multiply.

``files`` damages a file anywhere; these files are valid up to a few numbers: dimensions, attributes
and values that decide shapes are huge, negative or 0.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

Attack = Callable[[onnx.ModelProto, np.random.Generator], None]

EXTREMES = (
    0,
    1,
    -1,
    3,
    1000,
    2**16,
    10**6,
    10**9,
    2**31 - 1,
    2**31,
    10**12,
    2**48,
    2**62,
    -(2**31),
)
"""Numbers for dimensions, attributes and values."""
DOMAIN = "attack"
MOST_LEVELS = 40
MOST_NESTED = 29
"""Depth of nesting; Protobuf reads some 32 levels."""
OPSET = 17


def extreme(rng: np.random.Generator) -> int:
    return int(EXTREMES[int(rng.integers(len(EXTREMES)))])


def change_dims(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """A dimension of an input, an output or an initializer."""
    ends = [*model.graph.input, *model.graph.output]
    dims = [d for end in ends for d in end.type.tensor_type.shape.dim]
    tensors = [t for t in model.graph.initializer if t.dims]
    if tensors and rng.random() < 0.5:
        tensor = tensors[int(rng.integers(len(tensors)))]
        tensor.dims[int(rng.integers(len(tensor.dims)))] = extreme(rng)
    elif dims:
        dims[int(rng.integers(len(dims)))].dim_value = extreme(rng)


def change_attribute(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """An integer of an attribute."""
    kinds = (onnx.AttributeProto.INT, onnx.AttributeProto.INTS)
    actual = [a for n in model.graph.node for a in n.attribute if a.type in kinds]
    if not actual:
        return
    attribute = actual[int(rng.integers(len(actual)))]
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i = extreme(rng)
    elif attribute.ints:
        attribute.ints[int(rng.integers(len(attribute.ints)))] = extreme(rng)


def change_value(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """An element of constant integers: shapes, axes, sizes."""
    stored = [t for t in model.graph.initializer if t.data_type == TensorProto.INT64 and t.raw_data]
    if stored:
        tensor = stored[int(rng.integers(len(stored)))]
        values = np.frombuffer(tensor.raw_data, np.int64).copy()
        values[int(rng.integers(values.size))] = extreme(rng)
        tensor.raw_data = values.tobytes()


def nest(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """The whole graph as the branch of an If in the branch of an If, as deep as files allow."""
    graph = model.graph
    if any(n.op_type == "If" for n in graph.node):
        return
    yes = constant(graph, np.array(True))
    names = [output.name for output in graph.output]
    for level in range(int(rng.integers(1, MOST_NESTED))):
        node_proto = onnx.NodeProto(op_type="If", input=[yes], output=names)
        inner = onnx.GraphProto(name=f"then{level}", output=graph.output)
        other = onnx.GraphProto(name=f"else{level}", output=graph.output)
        inner.node.extend(graph.node)
        for name, branch in (("then_branch", inner), ("else_branch", other)):
            node_proto.attribute.add(name=name, type=onnx.AttributeProto.GRAPH).g.CopyFrom(branch)
        graph.ClearField("node")
        graph.node.append(node_proto)


def multiply(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """A node's input through functions, each of which calls the one before several times."""
    opsets = [*model.opset_import, helper.make_opsetid(DOMAIN, 1)]
    model.opset_import.append(opsets[-1])
    body = [node("Identity", ["a"], ["b"])]
    model.functions.append(helper.make_function(DOMAIN, "F0", ["a"], ["b"], body, opsets))
    levels, calls = int(rng.integers(1, MOST_LEVELS)), int(rng.integers(1, 4))
    for level in range(levels):
        names = ["a", *(f"c{i}" for i in range(calls - 1)), "b"]
        body = [node(f"F{level}", [x], [y], domain=DOMAIN) for x, y in pairwise(names)]
        built = helper.make_function(DOMAIN, f"F{level + 1}", ["a"], ["b"], body, opsets)
        model.functions.append(built)
    reading = [n for n in model.graph.node if n.input]
    if reading:
        reader = reading[int(rng.integers(len(reading)))]
        call = node(f"F{levels}", [reader.input[0]], ["attack:called"], domain=DOMAIN)
        reader.input[0] = "attack:called"
        nodes = [call, *model.graph.node] if in_front(model, call) else [*model.graph.node, call]
        remaining = [copied(n) for n in nodes]
        model.graph.ClearField("node")
        model.graph.node.extend(remaining)


def copied(inputs: onnx.NodeProto) -> onnx.NodeProto:
    """A node that does not fit the graph that it is taken from."""
    node_proto = onnx.NodeProto()
    node_proto.CopyFrom(inputs)
    return node_proto


def in_front(model: onnx.ModelProto, call: onnx.NodeProto) -> bool:
    """Whether the inputs of a call exist before all nodes."""
    inputs = [v.name for v in (*model.graph.input, *model.graph.initializer)]
    return call.input[0] in inputs


ATTACKS: tuple[Attack, ...] = (change_dims, change_attribute, change_value, nest, multiply)


def attack(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """One to three attacks on a model."""
    for _ in range(int(rng.integers(1, 4))):
        ATTACKS[int(rng.integers(len(ATTACKS)))](model, rng)


def made_for_attack(rng: np.random.Generator) -> onnx.ModelProto:
    """A chain of a few operators whose sizes of results are set by numbers."""
    value = helper.make_tensor_value_info
    graph = onnx.GraphProto(name="attack")
    graph.input.append(value("x", TensorProto.FLOAT, [1, 4]))
    graph.input.append(value("k", TensorProto.INT64, [extreme(rng) if rng.random() < 0.2 else 4]))
    values = ["x"]
    for number in range(int(rng.integers(1, 5))):
        make = GROWING[int(rng.integers(len(GROWING)))]
        built = f"v{number}"
        x = values[int(rng.integers(len(values)))]
        if rng.random() < 0.5:
            x = constant(graph, rng.standard_normal((1, 4)).astype(np.float32))
        graph.node.append(make(graph, x, built, rng))
        values.append(built)
    graph.node.append(node("ReduceMax", [values[-1]], ["m"], keepdims=0))
    graph.node.append(node("Add", ["x", "m"], ["y"]))
    graph.output.append(value("y", TensorProto.FLOAT, None))
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def constant(graph: onnx.GraphProto, array: object) -> str:
    """The name of a new initializer."""
    name = f"c{len(graph.initializer)}"
    graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return name


Growing = Callable[[onnx.GraphProto, str, str, np.random.Generator], onnx.NodeProto]


def sizes(graph: onnx.GraphProto, rng: np.random.Generator, count: int = 2) -> str:
    """Integers, mostly constant."""
    if rng.random() < 0.1:
        return "k"
    some = [extreme(rng) if rng.random() < 0.6 else int(rng.integers(1, 9)) for _ in range(count)]
    return constant(graph, np.array(some, np.int64))


def expand(g: onnx.GraphProto, x: str, y: str, rng: np.random.Generator) -> onnx.NodeProto:
    return node(("Expand", "Tile")[int(rng.integers(2))], [x, sizes(g, rng)], [y])


def fill(g: onnx.GraphProto, x: str, y: str, rng: np.random.Generator) -> onnx.NodeProto:
    return node("ConstantOfShape", [sizes(g, rng)], [y])


def steps(g: onnx.GraphProto, x: str, y: str, rng: np.random.Generator) -> onnx.NodeProto:
    bounds = [constant(g, np.float32(extreme(rng))) for _ in range(3)]
    return node("Range", bounds, [y])


def pad(g: onnx.GraphProto, x: str, y: str, rng: np.random.Generator) -> onnx.NodeProto:
    return node("Pad", [x, sizes(g, rng, 4)], [y])


def one_hot(g: onnx.GraphProto, x: str, y: str, rng: np.random.Generator) -> onnx.NodeProto:
    depth = constant(g, np.array(extreme(rng), (np.int64, np.float32)[int(rng.integers(2))]))
    return node("OneHot", [sizes(g, rng), depth, constant(g, np.float32([0, 1]))], [y])


def resize(g: onnx.GraphProto, x: str, y: str, rng: np.random.Generator) -> onnx.NodeProto:
    if rng.random() < 0.5:
        return node("Resize", [x, "", "", sizes(g, rng)], [y])
    scales = np.array([extreme(rng), extreme(rng)], np.float32)
    return node("Resize", [x, "", constant(g, scales)], [y])


def product(g: onnx.GraphProto, x: str, y: str, rng: np.random.Generator) -> onnx.NodeProto:
    return node("Einsum", [x, x], [y], equation=("ij,kl->ijkl", "ij,kl->jl")[int(rng.integers(2))])


def window(g: onnx.GraphProto, x: str, y: str, rng: np.random.Generator) -> onnx.NodeProto:
    length = constant(g, np.int64(extreme(rng)))
    return node(("HannWindow", "HammingWindow")[int(rng.integers(2))], [length], [y])


def top(g: onnx.GraphProto, x: str, y: str, rng: np.random.Generator) -> onnx.NodeProto:
    return node("TopK", [x, constant(g, np.array([extreme(rng)], np.int64))], [y, ""])


def loop(g: onnx.GraphProto, x: str, y: str, rng: np.random.Generator) -> onnx.NodeProto:
    """A small trip count: with many, any runtime takes long, until Ctrl-C.

    No windows of 10^9 elements, which onnxruntime computes for minutes, and no Loop.
    """
    value = helper.make_tensor_value_info
    body = onnx.GraphProto(name="body")
    body.input.extend([value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, [])])
    body.input.append(value(f"{y}:in", TensorProto.FLOAT, None))
    body.output.extend(
        [value("on", TensorProto.BOOL, []), value(f"{y}:out", TensorProto.FLOAT, None)]
    )
    inner = GROWING[int(rng.integers(len(GROWING) - 2))](body, f"{y}:in", f"{y}:grown", rng)
    body.node.extend([node("Identity", ["go"], ["on"]), inner])
    body.node.append(node("ReduceMax", [f"{y}:grown"], [f"{y}:out"], keepdims=0))
    for tensor in body.initializer:
        tensor.name = f"{y}:{tensor.name}"
    inner = body.node[1]
    inner.input[:] = [f"{y}:{n}" if n.startswith("c") else n for n in inner.input]
    trips = constant(g, np.array(int(rng.integers(4)), np.int64))
    return node("Loop", [trips, "", x], [y], body=body)


def ranked(g: onnx.GraphProto, x: str, y: str, rng: np.random.Generator) -> onnx.NodeProto:
    """Operators of images, whatever rank ``x`` has."""
    kind = ("DFT", "GridSample", "ReverseSequence", "RoiAlign")[int(rng.integers(4))]
    integers = {"DFT": [], "ReverseSequence": [sizes(g, rng)], "RoiAlign": [x, sizes(g, rng)]}
    return node(kind, [x, *integers.get(kind, [x])], [y])


GROWING: tuple[Growing, ...] = (
    *(expand, fill, steps, pad, one_hot, resize, product, top, ranked),
    *(window, loop),
)
