"""Operators that choose, for every element, between two values."""

from __future__ import annotations

from typing import Any

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.kinds import CODES, REALS, Kind, taking
from quantglow.graph.node import Node, op
from quantglow.graph.traits import Trait
from quantglow.ops.arithmetic import centred, is_integer, multiplier, saturate
from quantglow.ops.binary import broadcast, check_exact_operands
from quantglow.ops.samples import if_aligned
from quantglow.types import ElementType, TensorType


@op
class PRelu(Node):
    """``x if x >= 0 else slope * x``; ``slope`` is a float Constant that broadcasts to x."""

    x: Node
    slope: Node
    out: ElementType | None = None

    takes = taking(x=REALS, slope=Kind.FLOAT, out=CODES)
    traits = frozenset({Trait.ELEMENTWISE, Trait.LIGHT})

    def permuted(self, perm: tuple[int, ...]) -> dict[str, Any]:
        return {}

    def for_samples(self, shape: tuple[int, ...]) -> dict[str, Any] | None:
        return if_aligned(self)

    def infer(self) -> TensorType:
        if broadcast(self, self.x.type.shape, self.slope.type.shape) != self.x.type.shape:
            raise self.refuse("slope must broadcast to x")
        if (self.out is None) == is_integer(self.x.type):
            raise self.refuse("`out` must be given exactly when x is quantized")
        if self.out is not None:
            check_exact_operands(self, self.slope)
        return self.x.type if self.out is None else self.x.type.with_element(self.out)

    def reference(self, x: Array, slope: Array) -> Array:
        if self.out is None:
            return np.where(x < 0, x * slope, x)
        values = centred(x, self.x.type).astype(np.float32)
        scale, step = self.x.type.params.scale, self.type.params.scale
        positive, negative = multiplier(scale, divisor=step), multiplier(slope, scale, divisor=step)
        steps = values * np.where(values < 0, negative, positive)
        return saturate(steps, self.out, *self.out.dtype.limits)


@op
class Where(Node):
    """``x`` where ``condition`` holds, else ``y``, with NumPy broadcasting."""

    condition: Node
    x: Node
    y: Node

    takes = taking(condition=Kind.BOOL)
    traits = frozenset({Trait.ELEMENTWISE, Trait.MOVES, Trait.PASSES_SPECIALS})

    def for_samples(self, shape: tuple[int, ...]) -> dict[str, Any] | None:
        return if_aligned(self)

    def infer(self) -> TensorType:
        if self.x.type.element != self.y.type.element:
            raise self.refuse("x and y must have the same element type")
        return self.x.type.with_shape(broadcast(self, *(o.type.shape for o in self.operands)))

    def reference(self, condition: Array, x: Array, y: Array) -> Array:
        return np.where(condition, x, y)
