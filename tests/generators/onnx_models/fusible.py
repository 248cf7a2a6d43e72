"""Chains of layers as exporters write them: what the passes fuse, recognise and take apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.generators.onnx_models.models import Case

ROWS, WIDTH = 6, 16
SAMPLES = 3
MICROSOFT, LOCAL = "com.microsoft", "local"
OPSETS = [helper.make_opsetid(domain, n) for domain, n in (("", 20), (MICROSOFT, 1), (LOCAL, 1))]


class Chain:
    """A model under construction whose value is [1, ROWS, WIDTH]."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.value = rng, "x"
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int, low: float = -0.5, high: float = 0.5) -> str:
        """The name of a new initializer of uniform numbers."""
        array = self.rng.uniform(low, high, shape).astype(np.float32)
        return self.constant(array)

    def constant(self, array: object) -> str:
        """The name of a new initializer."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op_type: str, *operands: str, outputs: int = 1, **attributes: object) -> str:
        """The name of the last result of a new node; most nodes have a name of their own."""
        number = len(self.nodes)
        results = ["" if i + 1 < outputs else f"v{number}" for i in range(outputs)]
        name = f"/n{number}/{op_type}" if self.rng.random() < 0.8 else ""
        self.nodes.append(helper.make_node(op_type, operands, results, name, **attributes))
        return results[-1]


def linear(c: Chain) -> str:
    """A MatMul with a bias."""
    return c.add("Add", c.add("MatMul", c.value, c.weight(WIDTH, WIDTH)), c.weight(WIDTH))


def gemm(c: Chain) -> str:
    flat = c.add("Reshape", c.value, c.constant(np.array([ROWS, WIDTH])))
    built = c.add("Gemm", flat, c.weight(WIDTH, WIDTH), c.weight(WIDTH), transB=1)
    return c.add("Reshape", built, c.constant(np.array([1, ROWS, WIDTH])))


def convolution(c: Chain) -> str:
    """A convolution with a BatchNormalization, on rows as an image."""
    channels = c.add("Transpose", c.value, perm=[0, 2, 1])
    image = c.add("Unsqueeze", channels, c.constant(np.array([3])))
    y = c.add("Conv", image, c.weight(WIDTH, WIDTH, 1, 1))
    parameters = [c.weight(WIDTH) for _ in range(3)]
    y = c.add("BatchNormalization", y, *parameters, c.weight(WIDTH, low=0.5, high=2))
    y = c.add(str(c.rng.choice(["Relu", "HardSwish", "Sigmoid", "Identity"])), y)
    return c.add("Transpose", c.add("Squeeze", y, c.constant(np.array([3]))), perm=[0, 2, 1])


def einsum(c: Chain) -> str:
    return c.add("Einsum", c.value, c.weight(WIDTH, WIDTH), equation="bti,io->bto")


def fused_matmul(c: Chain) -> str:
    w = c.weight(WIDTH, WIDTH)
    return c.add("FusedMatMul", c.value, w, domain=MICROSOFT, transB=1, alpha=0.5)


def gelu(c: Chain) -> str:
    """x / 2 * (1 + erf(x / sqrt 2)) in parts."""
    root, one, half = (c.constant(np.float32(v)) for v in (2**0.5, 1, 0.5))
    grown = c.add("Add", c.add("Erf", c.add("Div", c.value, root)), one)
    return c.add("Mul", c.add("Mul", c.value, grown), half)


def normalization(c: Chain) -> str:
    """A layer normalization in parts."""
    mean = c.add("ReduceMean", c.value, c.constant(np.array([-1])))
    centered = c.add("Sub", c.value, mean)
    square = c.add("Pow", centered, c.constant(np.float32(2)))
    variance = c.add("ReduceMean", square, c.constant(np.array([-1])))
    root = c.add("Sqrt", c.add("Add", variance, c.constant(np.float32(1e-5))))
    scaled = c.add("Mul", c.add("Div", centered, root), c.weight(WIDTH, low=0.5, high=1.5))
    return c.add("Add", scaled, c.weight(WIDTH))


def recurrence(c: Chain) -> str:
    """An LSTM, of whose results the last hidden state is added to all rows."""
    kind, gates = [("LSTM", 4), ("GRU", 3)][int(c.rng.integers(2))]
    steps = c.add("Transpose", c.value, perm=[1, 0, 2])
    weights = [c.weight(1, gates * WIDTH, WIDTH) for _ in range(2)]
    last = c.add(kind, steps, *weights, outputs=2, hidden_size=WIDTH)
    return c.add("Add", c.value, last)


def called(c: Chain) -> str:
    """A call of a local function that has a product, and calls another one."""
    return c.add("Block", c.value, c.weight(WIDTH, WIDTH), c.weight(WIDTH), domain=LOCAL)


def residual(c: Chain) -> str:
    branch = c.add("MatMul", c.value, c.weight(WIDTH, WIDTH))
    return c.add(str(c.rng.choice(["Add", "Sub", "Sum", "Mean", "Max"])), branch, c.value)


def function(c: Chain) -> str:
    return c.add(str(c.rng.choice(["Relu", "Mish", "Gelu", "HardSwish", "Tanh"])), c.value)


def attention(c: Chain) -> str:
    """A product of activations."""
    scores = c.add("MatMul", c.value, c.add("Transpose", c.value, perm=[0, 2, 1]))
    return c.add("MatMul", c.add("Softmax", scores), c.value)


def normalized_residual(c: Chain) -> str:
    y = c.add("MatMul", c.value, c.weight(WIDTH, WIDTH))
    scale = c.weight(WIDTH, low=0.5, high=1.5)
    return c.add("SkipLayerNormalization", y, c.value, scale, domain=MICROSOFT)


LAYERS: tuple[Callable[[Chain], str], ...] = (
    *(linear, gemm, convolution, einsum, fused_matmul, gelu, normalization, recurrence, called),
    *(residual, function, attention, normalized_residual),
)


def functions() -> list[onnx.FunctionProto]:
    """``Block``, a product with a bias and ``Bent``, which is a function of its own."""
    node = helper.make_node
    bent = [node("Sigmoid", ["p"], ["s"], "gate"), node("Mul", ["p", "s"], ["r"], "gated")]
    block = [
        node("MatMul", ["p", "w"], ["m"], "product"),
        node("Add", ["m", "b"], ["a"], "bias"),
        node("Bent", ["a"], ["r"], "bent", domain=LOCAL),
    ]
    return [
        helper.make_function(LOCAL, "Bent", ["p"], ["r"], bent, OPSETS),
        helper.make_function(LOCAL, "Block", ["p", "w", "b"], ["r"], block, OPSETS),
    ]


def fusible(seed: int) -> Case:
    """A chain of one to five layers, and samples for it."""
    c = Chain(np.random.default_rng(seed))
    for place in c.rng.integers(len(LAYERS), size=c.rng.integers(1, 6)):
        c.value = LAYERS[place](c)
    shape = [1, ROWS, WIDTH]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", c.value)]
    graph = helper.make_graph(c.nodes, "chain", ends[:1], ends[1:], c.weights)
    model = helper.make_model(graph, opset_imports=OPSETS, ir_version=9, functions=functions())
    samples = ({"x": c.rng.standard_normal(shape).astype(np.float32)} for _ in range(SAMPLES))
    return Case(model, tuple(samples))
