"""A drawn graph of integer and float operators while it grows."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from quantglow.graph.node import Constant, Input, Node
from quantglow.types import DType, ElementType, QuantParams, TensorType

SCALES = (0.5, 0.1, 0.037, 0.0078125)
ZERO_POINTS = (-128, -127, -1, 0, 3, 127)


class Growth:
    """A graph while it grows.  ``exact`` are float values that lowering must keep bit for bit."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.random = np.random.default_rng(draw(st.integers(0, 2**16)))
        self.values: list[Node] = []
        self.exact: set[Node] = set()
        self.count = 0

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def make(self, op: type[Node], **fields: Any) -> Node:
        self.count += 1
        return op(name=f"v{self.count}", **fields)

    def constant(self, value: Any, element: ElementType | None = None) -> Node:
        return self.make(Constant, value=value, element=element)

    def floats(self, *shape: int) -> Node:
        return self.constant(self.random.uniform(-2, 2, shape).astype(np.float32))

    def element(self) -> ElementType:
        params = QuantParams.per_tensor(self.pick(*SCALES), self.pick(*ZERO_POINTS))
        return ElementType(DType.I8, params)

    def wide(self) -> ElementType:
        return ElementType(DType.I16, QuantParams.per_tensor(self.pick(*SCALES) / 50, 0))

    def either(self) -> tuple[ElementType, ElementType]:
        """An element type of each width."""
        return self.element(), self.wide()

    def weights(self, *shape: int) -> Node:
        scales = self.random.uniform(0.001, 0.1, shape[-1])
        per_axis = QuantParams.symmetric(scales, len(shape) - 1)
        params = self.pick(per_axis, QuantParams.per_tensor(0.02, 0))
        codes = self.random.integers(-127, 128, shape).astype(np.int8)
        return self.constant(codes, ElementType(DType.I8, params))

    def input(self, shape: tuple[int, ...], element: ElementType) -> None:
        kind = TensorType(element.dtype, shape, element.quant)
        node = self.make(Input, tensor=kind)
        self.values.append(node)
        self.exact.add(node)

    def add(self, node: Node, *, exact: bool) -> None:
        self.values.append(node)
        if exact:
            self.exact.add(node)

    def box(self, size: int, most: int = 2) -> int:
        return int(self.draw(st.integers(0, min(size, most))))
