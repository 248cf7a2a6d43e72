"""Small models with QuantizeLinear and DequantizeLinear, and their integers by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

INT8, UINT8 = np.int8, np.uint8
NARROW = {TensorProto.INT4: (-8, 7), TensorProto.UINT4: (0, 15)}


@dataclass
class QdqModel:
    """Nodes in order; every method returns the name of the value it makes."""

    opset: int = 21
    seed: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[onnx.TensorProto] = field(default_factory=list)
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def name(self) -> str:
        return f"v{len(self.nodes) + len(self.tensors) + len(self.inputs)}"

    def input(self, *shape: int) -> str:
        name = self.name()
        self.inputs[name] = shape
        return name

    def tensor(self, array: np.ndarray, kind: int | None = None) -> str:
        name = self.name()
        built = (
            numpy_helper.from_array(array, name)
            if kind is None
            else helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist())
        )
        self.tensors.append(built)
        return name

    def op(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = self.name()
        self.nodes.append(
            helper.make_node(op_type, inputs, [name], f"node_{name}", domain=domain, **attributes)
        )
        return name

    def microsoft(self, op_type: str, *inputs: str, dtype: Any, **attributes: Any) -> str:
        """An operator of onnxruntime's, whose type the checker cannot infer."""
        name = self.op(op_type, *inputs, domain="com.microsoft", **attributes)
        self.kinds[name] = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return name

    def parameters(self, scale: Any, zero_point: Any, dtype: Any) -> tuple[str, str]:
        return (
            self.tensor(np.array(scale, np.float32)),
            self.tensor(np.array(zero_point, dtype)),
        )

    def quantize(self, x: str, scale: Any, zero_point: Any, dtype: Any = UINT8, **axis: int) -> str:
        return self.op("QuantizeLinear", x, *self.parameters(scale, zero_point, dtype), **axis)

    def dequantize(
        self, x: str, scale: Any, zero_point: Any, dtype: Any = UINT8, **axis: int
    ) -> str:
        return self.op("DequantizeLinear", x, *self.parameters(scale, zero_point, dtype), **axis)

    def rounded(self, x: str, scale: Any, zero_point: Any, dtype: Any = UINT8, **axis: int) -> str:
        """Quantized and dequantized."""
        parameters = self.parameters(scale, zero_point, dtype)
        codes = self.op("QuantizeLinear", x, *parameters, **axis)
        return self.op("DequantizeLinear", codes, *parameters, **axis)

    def codes(self, shape: tuple[int, ...], dtype: Any = INT8) -> np.ndarray:
        info = np.iinfo(dtype)
        return self.random.integers(info.min, info.max, shape, dtype, endpoint=True)

    def weight_codes(self, shape: tuple[int, ...], dtype: Any = INT8) -> np.ndarray:
        """Codes of weights.  Signed ones have seven bits: without VNNI onnxruntime's integer
        operators saturate the sum of two products at 16 bits.
        """
        codes = self.codes(shape, dtype)
        return codes // 2 if dtype is INT8 else codes

    def weights(
        self, shape: tuple[int, ...], axis: int, zero_point: int = 0, dtype: Any = INT8
    ) -> str:
        """Weights with a scale for each channel."""
        channels = shape[axis]
        scales = self.random.uniform(0.002, 0.02, channels)
        codes = self.tensor(self.codes(shape, dtype))
        return self.dequantize(codes, scales, np.full(channels, zero_point), dtype, axis=axis)

    def model(self, *outputs: str) -> onnx.ModelProto:
        kinds = self.inputs.items()
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in kinds],
            [
                helper.make_tensor_value_info(n, self.kinds[n], None)
                if n in self.kinds
                else helper.make_empty_tensor_value_info(n)
                for n in outputs
            ],
            self.tensors,
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return onnx.shape_inference.infer_shapes(proto)

    def feeds(self, spread: float = 1.0) -> dict[str, np.ndarray]:
        return {
            name: (spread * self.random.standard_normal(shape)).astype(np.float32)
            for name, shape in self.inputs.items()
        }


def by_onnxruntime(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], *, optimized: bool = False
) -> list[np.ndarray]:
    """Outputs of onnxruntime, without the instructions of x86 that saturate sums at 16 bits.

    QAttention and DynamicQuantizeLSTM avoid them only if ``optimized``.
    """
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    )
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    outputs: list[np.ndarray] = session.run(None, dict(feeds))
    return outputs


def steps_apart(ours: np.ndarray, theirs: np.ndarray, scale: float) -> np.ndarray:
    """Difference of two dequantized results in quantization steps, element by element."""
    assert ours.shape == theirs.shape
    return np.abs(np.rint(ours / scale) - np.rint(theirs / scale)).astype(int)
