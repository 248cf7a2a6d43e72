"""Operators that change the element type of a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from quantglow.ir.graph.kinds import CODES, Kind, Trait, taking
from quantglow.ir.graph.node import Node, op
from quantglow.ir.ops.arithmetic import center, dequantize, multiplier, quantize, saturate
from quantglow.ir.ops.samples import if_per_tensor
from quantglow.ir.symbolic.size import Shape
from quantglow.ir.types import DType, ElementType, TensorType
from quantglow.support.arrays import Array


@op
class Quantize(Node):
    """``saturate(rint(x / scale) + zero_point)``"""

    x: Node
    out: ElementType

    takes = taking(x=Kind.FLOAT, out=CODES | Kind.CHANNELS)
    traits = frozenset({Trait.ELEMENTWISE})

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any]:
        return {}

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_per_tensor(self)

    def infer(self) -> TensorType:
        return self.x.type.with_element(self.out)

    def reference(self, x: Array) -> Array:
        return quantize(x, self.out)


@op
class Dequantize(Node):
    """``(x - zero_point) * scale``"""

    x: Node

    takes = taking(x=CODES | Kind.WIDE | Kind.CHANNELS | Kind.WIDE_CHANNELS)
    traits = frozenset({Trait.ELEMENTWISE})

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any]:
        return {}

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_per_tensor(self)

    def infer(self) -> TensorType:
        return TensorType(DType.F32, self.x.type.shape)

    def reference(self, x: Array) -> Array:
        return dequantize(x, self.x.type.params)


@op
class Rescale(Node):
    """The same reals in other quantization parameters: ``saturate((x - zp) * (s_x / s_out))``."""

    x: Node
    out: ElementType

    takes = taking(x=CODES, out=CODES)
    traits = frozenset({Trait.ELEMENTWISE})

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any]:
        return {}

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_per_tensor(self)

    def infer(self) -> TensorType:
        return self.x.type.with_element(self.out)

    def reference(self, x: Array) -> Array:
        ratio = multiplier(self.x.type.params.scale, divisor=self.type.params.scale)
        steps = center(x, self.x.type).astype(np.float32) * ratio
        return saturate(steps, self.out, *self.out.dtype.limits)


@op
class Table(Node):
    """``table[x - lowest(x.dtype)]``: any function of an 8-bit or int16 tensor.

    ``function`` names what the table computes, for people.
    """

    x: Node
    table: Node
    out: ElementType
    function: str = ""

    in_place = ("x",)

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any]:
        return {}

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_per_tensor(self)

    @property
    def stored_operands(self) -> tuple[str, ...]:
        return ("table",)

    def infer(self) -> TensorType:
        if self.x.type.dtype not in (DType.I8, DType.U8, DType.I16):
            raise self.refuse("x must be an 8-bit or int16 tensor")
        count = 2 ** (8 * self.x.type.dtype.nbytes)
        if self.table.type.fixed_shape != (count,) or self.table.type.dtype is not self.out.dtype:
            raise self.refuse(f"the table must hold {count} entries of {self.out.dtype}")
        return self.x.type.with_element(self.out)

    def reference(self, x: Array, table: Array) -> Array:
        return np.asarray(table[x.astype(np.int32) - self.x.type.dtype.limits[0]])
