"""Count a model's multiply-accumulates from its shapes."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import onnx
import onnxruntime as ort

Shapes = dict[str, tuple[int, ...]]


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model after onnxruntime's basic rewrites: shape arithmetic and constants are gone."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "folded.onnx")
        ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def static_shapes(model: onnx.ModelProto) -> Shapes:
    """The shape of every value that has one."""
    model.ir_version = max(model.ir_version, 4)  # before, initializers had to be inputs, too
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        shapes.setdefault(value.name, tuple(dim.dim_value for dim in dims))
    return shapes


def node_macs(node: onnx.NodeProto, shapes: Shapes) -> int:
    """Multiply-accumulates of one node; element-wise work counts as none."""
    match node.op_type:
        case "Conv":  # the weight is [O, C/group, *kernel]
            return math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])
        case "ConvTranspose":  # the weight is [C, O/group, *kernel]
            return math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])
        case "Gemm":
            transposed = any(a.name == "transA" and a.i for a in node.attribute)
            inner = shapes[node.input[0]][0 if transposed else 1]
            return math.prod(shapes[node.output[0]]) * inner
        case "MatMul":
            return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
        case _:
            return 0


def count_macs(model: onnx.ModelProto) -> int:
    """Multiply-accumulates of one run, padding included; the model's input shapes are fixed."""
    plain = folded(model)
    shapes = static_shapes(plain)
    return sum(node_macs(node, shapes) for node in plain.graph.node)
