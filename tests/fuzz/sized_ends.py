"""The same case with outputs whose computation depends on free sizes: sums along an axis, masks of
compared positions, last rows, images as large as others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Rng = np.random.Generator


class Ends:
    """Nodes that are added to a model."""

    def __init__(self, model: onnx.ModelProto, rng: Rng) -> None:
        self.graph, self.rng = model.graph, rng
        self.opset = next(entry.version for entry in model.opset_import if not entry.domain)
        self._names = (f"sized{number}" for number in count())

    def constant(self, value: object, dtype: type = np.int64) -> str:
        """An initializer."""
        name = next(self._names)
        array = np.array(value, dtype)
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op_type: str, *operands: str, **attributes: object) -> str:
        """The result of a node."""
        name = next(self._names)
        self.graph.node.append(helper.make_node(op_type, operands, [name], **attributes))
        return name

    def size(self, x: str, axis: int) -> str:
        """A size of x, [1]."""
        return self.node("Gather", self.node("Shape", x), self.constant([axis]), axis=0)

    def reduced(self, op_type: str, x: str, axis: int) -> str:
        """A reduction of one axis, as the opset writes it."""
        if self.opset >= (13 if op_type == "ReduceSum" else 18):
            return self.node(op_type, x, self.constant([axis]))
        return self.node(op_type, x, axes=[axis])


def cumulative(ends: Ends, x: str, rank: int) -> str:
    """Sums up to each element."""
    axis = ends.constant(int(ends.rng.integers(rank)), np.int64)
    flags = {name: int(ends.rng.integers(2)) for name in ("exclusive", "reverse")}
    return ends.node("CumSum", x, axis, **flags)


def product(ends: Ends, x: str, rank: int) -> str:
    """A product along an axis."""
    return ends.reduced("ReduceProd", ends.node("Tanh", x), int(ends.rng.integers(rank)))


def of_integers(ends: Ends, x: str, rank: int) -> str:
    """A reduction of integers."""
    scaled = ends.node("Mul", ends.node("Tanh", x), ends.constant(3.7, np.float32))
    whole = ends.node("Cast", scaled, to=TensorProto.INT32)
    kind = str(ends.rng.choice(["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"]))
    return ends.node("Cast", ends.reduced(kind, whole, int(ends.rng.integers(rank))), to=1)


def last_rows(ends: Ends, x: str, rank: int) -> str:
    """Rows of known places, from the end, too."""
    places = [-1] if ends.rng.random() < 0.5 else [0, -1]
    return ends.node("Gather", x, ends.constant(places), axis=int(ends.rng.integers(rank)))


def diagonal(ends: Ends, x: str, rank: int) -> str:
    """A matrix of the size of the last two axes, with ones on a diagonal."""
    if rank != 2:
        return last_rows(ends, x, rank)
    return ends.node("Add", x, ends.node("EyeLike", x, k=int(ends.rng.integers(-1, 2))))


def masked(ends: Ends, x: str, rank: int) -> str:
    """Elements up to their row's own place, those behind it very low."""
    zero, one = ends.constant(0), ends.constant(1)
    rows, columns = (
        ends.node("Range", zero, ends.node("Squeeze", ends.size(x, rank - back)), one)
        for back in (2, 1)
    )
    down = ends.node("Reshape", rows, ends.constant([-1, 1]))
    early = ends.node("LessOrEqual", columns, down)
    return ends.node("Where", early, x, ends.constant(-1e4, np.float32))


def scaled(ends: Ends, x: str, rank: int) -> str:
    """Elements divided by the root of a size."""
    size = ends.node("Cast", ends.size(x, int(ends.rng.integers(rank))), to=TensorProto.FLOAT)
    return ends.node("Div", x, ends.node("Sqrt", size))


def as_large(ends: Ends, x: str, rank: int) -> str:
    """An image as large as the one that it was half of."""
    if rank != 4:
        return masked(ends, x, rank)
    half = ends.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1])
    mode = str(ends.rng.choice(["nearest", "linear"]))
    return ends.node("Resize", half, "", "", ends.node("Shape", x), mode=mode)


ENDS: tuple[Callable[[Ends, str, int], str], ...] = (
    *(cumulative, product, of_integers, last_rows, diagonal, masked, scaled, as_large),
)


def with_sized_ends(model: onnx.ModelProto, rng: Rng) -> onnx.ModelProto:
    """The model with one or two more outputs of its float inputs, if it has such of two axes."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    kinds = {info.name: info.type.tensor_type for info in changed.graph.input}
    ranks = {n: len(k.shape.dim) for n, k in kinds.items() if k.elem_type == TensorProto.FLOAT}
    names = [name for name, rank in ranks.items() if rank >= 2]
    ends = Ends(changed, rng)
    if not names or ends.opset < 13:
        return changed
    for _ in range(int(rng.integers(1, 3))):
        x = names[int(rng.integers(len(names)))]
        result = ENDS[int(rng.integers(len(ENDS)))](ends, x, ranks[x])
        changed.graph.output.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, None))
    return changed
