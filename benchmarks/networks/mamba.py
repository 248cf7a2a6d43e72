"""A stack of Mamba blocks of drawn weights, of the sizes of mamba-130m.

Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (2023), without the
table of embeddings and the head.  The scan over the steps is ONNX's Scan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quantglow.support.arrays import Array

LAYERS, MODEL, INNER, STATES, RANK, TAPS = 24, 768, 1536, 16, 48, 4


@dataclass
class Writer:
    """Nodes and constants in the making; each method returns the name of a result."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, array: Array) -> str:
        name = f"c{len(self.constants)}"
        kept = array if array.dtype == np.int64 else array.astype(np.float32)
        self.constants.append(numpy_helper.from_array(kept, name))
        return name

    def weights(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape) / np.sqrt(shape[0]))

    def node(self, op: str, *operands: str, outputs: int = 1, **attributes: Any) -> list[str]:
        names = [f"v{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(op, operands, names, **attributes))
        return names

    def one(self, op: str, *operands: str, **attributes: Any) -> str:
        return self.node(op, *operands, **attributes)[0]

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def silu(self, x: str) -> str:
        return self.one("Mul", x, self.one("Sigmoid", x))

    def split(self, x: str, *sizes: int) -> list[str]:
        return self.node("Split", x, self.integers(*sizes), outputs=len(sizes), axis=-1)


def model(steps: int, layers: int = LAYERS) -> onnx.ModelProto:
    """The stack on x [steps, MODEL], one sequence."""
    w, x = Writer(np.random.default_rng(3)), "x"
    for _ in range(layers):
        x = w.one("Add", x, block(w, normalized(w, x)))
    w.nodes.append(helper.make_node("Identity", [normalized(w, x)], ["y"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [steps, MODEL]) for name in "xy"]
    graph = helper.make_graph(w.nodes, "mamba", ends[:1], ends[1:], w.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def normalized(w: Writer, x: str) -> str:
    """Over the root of the mean of squares."""
    mean = w.one("ReduceMean", w.one("Mul", x, x), axes=[-1], keepdims=1)
    root = w.one("Sqrt", w.one("Add", mean, w.constant(np.array(1e-5))))
    return w.one("Mul", w.one("Div", x, root), w.constant(1 + w.rng.normal(0, 0.1, MODEL)))


def block(w: Writer, x: str) -> str:
    """The mixer of a layer."""
    signal, gate = w.split(w.one("MatMul", x, w.weights(MODEL, 2 * INNER)), INNER, INNER)
    signal = w.silu(convolved(w, signal))
    parameters = w.one("MatMul", signal, w.weights(INNER, RANK + 2 * STATES))
    rank, before, after = w.split(parameters, RANK, STATES, STATES)
    shifted = w.one("Add", w.one("MatMul", rank, w.weights(RANK, INNER)), w.weights(INNER))
    change = w.one("Softplus", w.one("Sub", shifted, w.constant(np.array(4.0))))
    y = scanned(w, signal, change, before, after)
    skipped = w.one("Mul", signal, w.constant(np.ones(INNER)))
    y = w.one("Mul", w.one("Add", y, skipped), w.silu(gate))
    return w.one("MatMul", y, w.weights(INNER, MODEL))


def convolved(w: Writer, x: str) -> str:
    """A causal convolution of each channel along the steps."""
    rows = w.one("Unsqueeze", w.one("Transpose", x, perm=[1, 0]), w.integers(0))
    weights = w.constant(w.rng.normal(0, 0.5, (INNER, 1, TAPS)))
    bias = w.constant(w.rng.normal(0, 0.1, INNER))
    built = w.one("Conv", rows, weights, bias, group=INNER, pads=[TAPS - 1, 0])
    return w.one("Transpose", w.one("Squeeze", built, w.integers(0)), perm=[1, 0])


def scanned(w: Writer, x: str, change: str, before: str, after: str) -> str:
    """h' = exp(change a) h + change x before,  y = h' after."""
    a = w.constant(-np.tile(np.arange(1, STATES + 1.0), (INNER, 1)))
    last, middle = w.integers(-1), w.integers(1)
    powers = w.one("Exp", w.one("Mul", w.one("Unsqueeze", change, last), a))
    scaled = w.one("Unsqueeze", w.one("Mul", change, x), last)
    changes = w.one("Mul", scaled, w.one("Unsqueeze", before, middle))
    columns = w.one("Unsqueeze", after, last)
    start = w.constant(np.zeros((INNER, STATES)))
    operands = (start, powers, changes, columns)
    _, rows = w.node("Scan", *operands, outputs=2, body=step(), num_scan_inputs=3)
    return w.one("Squeeze", rows, last)


def step() -> onnx.GraphProto:
    """A step of the scan."""
    node: Callable[..., onnx.NodeProto] = helper.make_node
    shape = [INNER, STATES]
    kinds = {"state": shape, "decay": shape, "added": shape, "column": [STATES, 1]}
    ends = {"next": shape, "row": [INNER, 1]}
    inputs, outputs = (
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in some.items()]
        for some in (kinds, ends)
    )
    nodes = [
        node("Mul", ["decay", "state"], ["kept"]),
        node("Add", ["kept", "added"], ["next"]),
        node("MatMul", ["next", "column"], ["row"]),
    ]
    return helper.make_graph(nodes, "step", inputs, outputs)
