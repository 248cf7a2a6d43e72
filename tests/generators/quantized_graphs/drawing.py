"""A graph of integer and float operators under construction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Concat, Pad, Slice, Transpose
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType

SCALES = (0.5, 0.4, 0.1, 0.05, 0.037, 0.0117, 0.0078125)
CHANNELS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 130)
"""Numbers of channels around the widths of vectors and tiles."""


class Drawing:
    """A graph under construction, drawn by Hypothesis.

    ``values`` can be operands of further nodes; ``exact`` are the float values that lowering must
    keep bit for bit; ``dtype`` is the element type of operands where none is given.
    """

    def __init__(self, draw: st.DrawFn, dtype: DType = DType.I8) -> None:
        self.draw = draw
        self.dtype = dtype
        self.random = np.random.default_rng(draw(st.integers(0, 2**16)))
        self.inputs: list[Input] = []
        self.values: list[Node] = []
        self.exact: set[Node] = set()
        self.count = 0

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def pick_evenly(self, *choices: Any) -> Any:
        """One of the choices, each as likely as the others: Hypothesis, which prefers what it drew
        before, draws the distance from a random one.
        """
        start = int(self.random.integers(len(choices)))
        return choices[(start + self.number(0, len(choices) - 1)) % len(choices)]

    def number(self, low: int, high: int) -> int:
        """From ``low`` to ``high``, both included."""
        return self.draw(st.integers(low, high))

    def make(self, op: type[Node], **fields: Any) -> Node:
        self.count += 1
        return op(name=f"v{self.count}", **fields)

    def constant(self, value: Any, element: ElementType | None = None) -> Node:
        return self.make(Constant, value=value, element=element)

    def floats(self, *shape: int) -> Node:
        return self.constant(self.random.uniform(-2, 2, shape).astype(np.float32))

    def weights(self, *shape: int) -> Node:
        """Weights in int8 with a scale for each channel, or with one scale."""
        scales = self.random.uniform(0.001, 0.1, shape[-1])
        per_axis = QuantParams.symmetric(scales, len(shape) - 1)
        params = self.pick(per_axis, QuantParams.per_tensor(0.02, 0))
        codes = self.random.integers(-127, 128, shape).astype(np.int8)
        return self.constant(codes, ElementType(DType.I8, params))

    def element(self, dtype: DType | None = None) -> ElementType:
        """Quantization with any scale and any zero point, for int16 mostly 0; float has none."""
        dtype = dtype or self.dtype
        if dtype.is_float:
            return ElementType(dtype)
        low, high = dtype.limits
        zero_point = self.pick(0, 3, low, low + 1, (low + high) // 2, high - 6, high)
        if dtype is DType.I16:
            zero_point = self.pick(0, 0, 0, zero_point)
        return ElementType(dtype, QuantParams.per_tensor(self.pick(*SCALES), zero_point))

    def wide(self) -> ElementType:
        """Symmetric int16."""
        return ElementType(DType.I16, QuantParams.per_tensor(self.pick(*SCALES) / 50, 0))

    def either(self) -> tuple[ElementType, ElementType]:
        """An element type of each width."""
        return self.element(), self.wide()

    def input(self, shape: tuple[int, ...], element: ElementType) -> Input:
        built = self.make(Input, tensor=TensorType(element.dtype, shape, element.quant))
        assert isinstance(built, Input)
        self.inputs.append(built)
        return built

    def operand(self, shape: Sequence[int], dtype: DType | None = None) -> Node:
        """A value of ``shape``: an input, or a transposed or strided view of one."""
        shape, element = tuple(shape), self.element(dtype)
        how = self.pick("plain", "plain", "transposed", "sliced")
        if how == "plain":
            return self.input(shape, element)
        return self.transposed(shape, element) if how == "transposed" else self.cut(shape, element)

    def transposed(self, shape: tuple[int, ...], element: ElementType) -> Node:
        """A value of ``shape``: the transpose of an input."""
        perm = tuple(self.draw(st.permutations(range(len(shape)))))
        source = [0] * len(shape)
        for axis, p in enumerate(perm):
            source[p] = shape[axis]
        return self.make(Transpose, x=self.input(tuple(source), element), perm=perm)

    def cut(self, shape: tuple[int, ...], element: ElementType) -> Node:
        """A value of ``shape``: every element of an input, every second, or all backwards."""
        steps = tuple(self.pick(1, 1, 2, -1) for _ in shape)
        sizes = tuple((d - 1) * abs(s) + 2 for d, s in zip(shape, steps, strict=True))
        starts = tuple(1 if s > 0 else d - 1 for d, s in zip(sizes, steps, strict=True))
        x = self.input(sizes, element)
        return self.make(Slice, x=x, starts=starts, sizes=shape, steps=steps)

    def add(self, node: Node, *, exact: bool) -> None:
        """Let further nodes read a value."""
        self.values.append(node)
        if exact:
            self.exact.add(node)

    def placed(self, node: Node) -> Node:
        """The node as an output, or computed inside a Pad or a Concat."""
        rank = node.type.rank
        how = self.pick("plain", "padded", "joined") if rank else "plain"
        if how == "padded":
            widths = [self.pick(0, 1, 3) for _ in range(2 * rank)]
            before, after = tuple(widths[:rank]), tuple(widths[rank:])
            return self.make(Pad, x=node, before=before, after=after, value=1.0)
        if how == "joined":
            other = self.input(node.type.shape, node.type.element)
            parts = (node, other) if self.pick(True, False) else (other, node)
            return self.make(Concat, parts=parts, axis=self.number(0, rank - 1))
        return node

    def graph(self, *nodes: Node) -> Graph:
        """A graph whose outputs are the nodes, each ``placed``."""
        outputs = tuple((f"out{i}", self.placed(node)) for i, node in enumerate(nodes))
        return Graph(tuple(self.inputs), outputs)
