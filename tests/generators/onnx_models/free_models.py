"""ONNX models with free dimensions, of three families, for laws about shapes and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from quantglow.types import Array
from tests.generators.values import LOWS

Dims = Sequence[str | int]
WIDTH, HEADS, WORDS = 32, 2, 40
MEAN, DEVIATION = np.float32(0.45), np.float32(0.22)
INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT


@dataclass
class Model:
    """Nodes and weights; equal ``seed`` and calls give equal models."""

    seed: int
    dims: dict[str, Dims]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def op(self, kind: str, *operands: str, outputs: int = 1, **attributes: Any) -> str:
        """A node; the name of its first output."""
        names = [f"{kind.lower()}{len(self.nodes)}" + "_" * i for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, operands, names, name=names[0], **attributes))
        return names[0]

    def normal(self, *shape: int, scale: float = 1.0) -> str:
        """Weights of the standard deviation ``scale / sqrt(fan in)``; filters differ in size."""
        size = np.prod(shape[1:]) if len(shape) > 2 else shape[0]
        spread = 4 ** self.rng.uniform(-1, 1, (shape[0], 1, 1, 1)) if len(shape) == 4 else 1.0
        return self.constant(self.rng.standard_normal(shape) * (scale * spread / np.sqrt(size)))

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """An initializer."""
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        return name

    def proto(self, output: str, dims: Sequence[str | int | None]) -> onnx.ModelProto:
        """The checked model; inputs of two letters are words, the others images or rows."""
        kinds = {name: INT64 if name in ("src", "tgt") else FLOAT for name in self.dims}
        make = helper.make_tensor_value_info
        inputs = [make(name, kinds[name], dims) for name, dims in self.dims.items()]
        tensors = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        outputs = [make(output, FLOAT, dims)]
        graph = helper.make_graph(self.nodes, "drawn", inputs, outputs, tensors)
        opsets = [helper.make_opsetid("", 20)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        onnx.checker.check_model(model)
        return model


Shape = tuple[int, ...]
Sample = dict[str, Array]


@dataclass(frozen=True)
class Drawn:
    """A model, the shapes of its calibration samples and further ones, and its kind."""

    kind: str
    proto: onnx.ModelProto
    calibrated: tuple[Shape, ...]
    others: tuple[Shape, ...]

    def sample(self, shape: Shape, seed: int) -> Sample:
        """Inputs for free dimensions of these sizes."""
        rng = np.random.default_rng([seed, *shape])
        if self.kind == "image":
            pixels = rng.integers(0, 256, (shape[0], 3, *shape[1:])).astype(np.float32)
            return {"x": (pixels / np.float32(255) - MEAN) / DEVIATION}
        if self.kind == "transformer":
            return {"x": rng.standard_normal((*shape, WIDTH)).astype(np.float32)}
        lengths = zip(("src", "tgt"), shape, strict=False)
        return {name: rng.integers(0, WORDS, (length, 1)) for name, length in lengths}


@st.composite
def image_networks(draw: st.DrawFn) -> Drawn:
    """An inverted bottleneck with a linear residual stream, normalized bytes as input."""
    model = Model(draw(st.integers(0, 999)), {"x": ("N", 3, "H", "W")})
    x = model.op("Conv", "x", model.normal(16, 3, 3, 3), pads=[1] * 4)
    shared = model.constant(np.zeros(16))
    for _ in range(draw(st.integers(1, 2))):
        wide = model.op("Conv", x, model.normal(32, 16, 1, 1), model.constant(np.zeros(32)))
        wide = model.op(draw(st.sampled_from(["Relu", "HardSwish"])), wide)
        depthwise = model.normal(32, 1, 3, 3)
        wide = model.op("Conv", wide, depthwise, pads=[1] * 4, group=32)
        wide = model.op("HardSwish", wide)
        x = model.op("Add", x, model.op("Conv", wide, model.normal(16, 32, 1, 1), shared))
    x = model.op("Relu", model.op("Conv", x, model.normal(64, 16, 3, 3, scale=2), pads=[1] * 4))
    flat = model.op("Flatten", model.op("GlobalAveragePool", x))
    y = model.op("Gemm", flat, model.normal(64, 24), model.constant(np.zeros(24)))
    proto = model.proto(y, ("N", 24))
    others = ((2, 7, 5), (1, 3, 16), (3, 8, 8), (0, 8, 8))
    return Drawn("image", proto, ((1, 8, 8), (1, 8, 12)), others)


@st.composite
def transformers(draw: st.DrawFn) -> Drawn:
    """Blocks of attention, optionally causal, and Gelu, with normalization before or behind them.

    The input ``x`` is [N, T, 32].
    """
    model = Model(draw(st.integers(0, 999)), {"x": ("N", "T", WIDTH)})
    is_before, is_shared = draw(st.booleans()), draw(st.booleans())
    low = draw(st.sampled_from([None, *LOWS]))
    plain = (model.constant(np.ones(WIDTH)), model.constant(np.zeros(WIDTH)))

    def normalized(x: str) -> str:
        gamma = model.constant(10 ** model.rng.uniform(-1, 1, WIDTH))
        parameters = plain if is_shared else (gamma, plain[1])
        return model.op("LayerNormalization", x, *parameters)

    def linear(x: str, inputs: int, outputs: int) -> str:
        product = model.op("MatMul", x, model.normal(inputs, outputs))
        return model.op("Add", product, model.constant(np.zeros(outputs)))

    def later() -> str:
        """Mask of the places, on the last axis, that come behind another."""
        length = model.op("Squeeze", model.op("Shape", "x", start=1, end=2))
        numbers = (model.constant(value, np.int64) for value in (0, 1))
        places = model.op("Range", next(numbers), length, next(numbers))
        rows = model.op("Unsqueeze", places, model.constant([1], np.int64))
        return model.op("Less", rows, places)

    def attention(x: str) -> str:
        split = model.constant([0, 0, HEADS, WIDTH // HEADS], np.int64)
        parts = [model.op("Reshape", linear(x, WIDTH, WIDTH), split) for _ in range(3)]
        q, k, v = (
            model.op("Transpose", part, perm=perm)
            for part, perm in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
        )
        scores = model.op("Mul", model.op("MatMul", q, k), model.constant(0.25))
        if low is not None:
            scores = model.op("Where", later(), model.constant(low), scores)
        mixed = model.op("MatMul", model.op("Softmax", scores, axis=-1), v)
        rows = model.op("Transpose", mixed, perm=[0, 2, 1, 3])
        merged = model.op("Reshape", rows, model.constant([0, 0, WIDTH], np.int64))
        return linear(merged, WIDTH, WIDTH)

    def feed_forward(x: str) -> str:
        return linear(model.op("Gelu", linear(x, WIDTH, 2 * WIDTH)), 2 * WIDTH, WIDTH)

    x = "x"
    for _ in range(draw(st.integers(1, 2))):
        for part in (attention, feed_forward):
            if is_before:
                x = model.op("Add", x, part(normalized(x)))
            else:
                x = normalized(model.op("Add", x, part(x)))
    y = linear(normalized(x), WIDTH, 24)
    others = ((1, 3), (2, 6), (1, 17), (0, 4))
    return Drawn("transformer", model.proto(y, ("N", "T", 24)), ((1, 6), (1, 9)), others)


@st.composite
def recurrent_networks(draw: st.DrawFn) -> Drawn:
    """An encoder of words and, with attention, a decoder: GRU, LSTM or RNN of free lengths."""
    kind, is_pair = draw(st.sampled_from(["GRU", "LSTM", "RNN"])), draw(st.booleans())
    names = ("src", "tgt") if is_pair else ("src",)
    model = Model(draw(st.integers(0, 999)), {name: (name.upper(), 1) for name in names})
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[kind]

    def cell(words: str, *state: str) -> tuple[str, str]:
        rows = model.op("Gather", model.constant(model.rng.standard_normal((WORDS, 24))), words)
        weights = (model.normal(1, gates * 40, width) for width in (24, 40))
        bias = model.constant(model.rng.normal(size=(1, 2 * gates * 40)) * 0.1)
        options: dict[str, Any] = {"hidden_size": 40}
        if kind == "GRU":
            options["linear_before_reset"] = draw(st.integers(0, 1))
        given = ("", *state) if state else ()
        steps = model.op(kind, rows, *weights, bias, *given, outputs=2, **options)
        flat = model.op("Squeeze", steps, model.constant([1], np.int64))
        return model.op("Transpose", flat, perm=[1, 0, 2]), f"{steps}_"

    x, last = cell("src")
    if is_pair:
        memory, (x, _) = x, cell("tgt", last)
        keys = model.op("Transpose", memory, perm=[0, 2, 1])
        scores = model.op("MatMul", model.op("MatMul", x, model.normal(40, 40)), keys)
        seen = model.op("MatMul", model.op("Softmax", scores, axis=-1), memory)
        x = model.op("Tanh", model.op("Concat", x, seen, axis=-1))
    y = model.op("MatMul", x, model.normal(80 if is_pair else 40, WORDS))
    proto = model.proto(y, (1, names[-1].upper(), WORDS))
    sizes = ((4, 3), (5, 2), (4, 3)), ((6, 5), (2, 6), (8, 1), (5, 4))
    calibrated, others = (tuple(s[: len(names)] for s in some) for some in sizes)
    return Drawn("recurrent", proto, calibrated, others)
