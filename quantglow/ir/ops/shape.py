"""Operators that move elements.  Quantization parameters pass through."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quantglow.ir.graph.kinds import REALS, Kind, Trait, element_kind
from quantglow.ir.graph.node import Constant, Node, op
from quantglow.ir.ops.arithmetic import is_integer, representable
from quantglow.ir.symbolic.size import (
    Shape,
    broadcast_shapes,
    decide,
    decide_equal,
    fixed,
    prod,
)
from quantglow.ir.types import DType, TensorType
from quantglow.support.arrays import Array

MOVES = frozenset(
    {
        Trait.MOVES,
        Trait.CHOOSES,
        Trait.KEEPS_ZERO,
        Trait.KEEPS_QUANTIZATION,
        Trait.PASSES_SPECIALS,
        Trait.LIGHT,
    }
)


@op
class Reshape(Node):
    """The same elements, in row-major order, under another shape."""

    x: Node
    shape: Shape

    traits = MOVES | {Trait.REARRANGES, Trait.VIEW, Trait.SERVES_READERS, Trait.FINISHES}

    def for_samples(self, shape: Shape) -> dict[str, Any]:
        """Elements keep their order, so those of a sample stay together."""
        return {"shape": shape}

    def infer(self) -> TensorType:
        if decide(prod(self.shape) != self.x.type.size) or any(decide(d < 0) for d in self.shape):
            raise self.refuse(f"{self.x.type.size} elements do not fill shape {self.shape}")
        return self.x.type.with_shape(self.shape)

    def reference(self, x: Array) -> Array:
        return x.reshape(self.shape)


@op
class Transpose(Node):
    """Axis i of the result is axis ``perm[i]`` of x."""

    x: Node
    perm: tuple[int, ...]

    traits = MOVES | {Trait.REARRANGES, Trait.VIEW, Trait.SERVES_READERS, Trait.FINISHES}

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return {} if self.perm[0] == 0 else None

    def infer(self) -> TensorType:
        if sorted(self.perm) != list(range(self.x.type.rank)):
            raise self.refuse(f"{self.perm} is not a permutation of the axes")
        return self.x.type.with_shape(tuple(self.x.type.shape[p] for p in self.perm))

    def reference(self, x: Array) -> Array:
        return x.transpose(self.perm)


@op
class Expand(Node):
    """x broadcast to ``shape``."""

    x: Node
    shape: Shape

    traits = MOVES | {Trait.VIEW}

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return {"shape": shape} if self.x.type.rank == len(self.shape) else None

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any] | None:
        same_rank = self.x.type.rank == len(self.shape)
        return {"shape": tuple(self.shape[axis] for axis in perm)} if same_rank else None

    def infer(self) -> TensorType:
        try:
            fits = decide_equal(broadcast_shapes(self.x.type.shape, self.shape), self.shape)
        except ValueError:
            fits = False
        if not fits:
            raise self.refuse(f"x does not broadcast to {self.shape}")
        return self.x.type.with_shape(self.shape)

    def reference(self, x: Array) -> Array:
        return np.broadcast_to(x, fixed(self.shape))


@op
class Concat(Node):
    """Parts of one element type, joined along ``axis``."""

    parts: tuple[Node, ...]
    axis: int

    traits = MOVES | {Trait.FINISHES}

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any]:
        return {"axis": perm.index(self.axis)}

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        """Constants must be the same for all samples."""
        constants = [part.value for part in self.parts if isinstance(part, Constant)]
        alike = all((value == value[:1]).all() for value in constants)
        return {} if self.axis and alike else None

    def infer(self) -> TensorType:
        first = self.parts[0].type
        if not 0 <= self.axis < first.rank:
            raise self.refuse(f"axis {self.axis} is outside rank {first.rank}")
        for part in self.parts:
            if part.type.element != first.element:
                raise self.refuse("all parts must have the same element type")
            if part.type.rank != first.rank or any(
                decide(a != b)
                for i, (a, b) in enumerate(zip(part.type.shape, first.shape, strict=True))
                if i != self.axis
            ):
                raise self.refuse("parts may differ along the axis only")
        shape = list(first.shape)
        shape[self.axis] = sum(part.type.shape[self.axis] for part in self.parts)
        return first.with_shape(tuple(shape))

    def reference(self, parts: tuple[Array, ...]) -> Array:
        return np.concatenate(parts, axis=self.axis)


@op
class Slice(Node):
    """``x[starts[i] : … : steps[i]]`` with ``sizes[i]`` elements along every axis; steps may be
    negative."""

    x: Node
    starts: Shape
    sizes: Shape
    steps: Shape

    traits = MOVES | {Trait.REARRANGES, Trait.VIEW, Trait.FINISHES}

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any]:
        named = {"starts": self.starts, "sizes": self.sizes, "steps": self.steps}
        return {name: tuple(values[axis] for axis in perm) for name, values in named.items()}

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        is_whole = decide(self.starts[0] == 0) and decide(self.steps[0] == 1)
        return {"sizes": shape} if is_whole else None

    def infer(self) -> TensorType:
        rank = self.x.type.rank
        if not len(self.starts) == len(self.sizes) == len(self.steps) == rank:
            raise self.refuse("starts, sizes and steps need one entry for each axis")
        for d, start, size, step in zip(
            self.x.type.shape, self.starts, self.sizes, self.steps, strict=True
        ):
            last = start + (size - 1) * step
            is_inside = decide(size >= 0) and (
                not decide(size != 0)
                or all(decide(end >= 0) and decide(end < d) for end in (start, last))
            )
            if not is_inside:
                raise self.refuse(f"start {start}, size {size}, step {step} leave an axis of {d}")
        return self.x.type.with_shape(self.sizes)

    def reference(self, x: Array) -> Array:
        index = [
            int(start) + np.arange(int(size)) * int(step)
            for start, size, step in zip(self.starts, self.sizes, self.steps, strict=True)
        ]
        return x[np.ix_(*index)] if index else x


@op
class Pad(Node):
    """x with ``before``/``after`` elements of ``value`` (a real number) along each axis."""

    x: Node
    before: Shape
    after: Shape
    value: float = 0.0

    traits = MOVES

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any]:
        named = {"before": self.before, "after": self.after}
        return {name: tuple(values[axis] for axis in perm) for name, values in named.items()}

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return {} if decide(self.before[0] == 0) and decide(self.after[0] == 0) else None

    def infer(self) -> TensorType:
        rank = self.x.type.rank
        if len(self.before) != rank or len(self.after) != rank:
            raise self.refuse("before and after need one entry for each axis")
        if any(decide(width < 0) for width in (*self.before, *self.after)):
            raise self.refuse("negative pads are written as Slice")
        if not element_kind(self.x.type) & (REALS | Kind.WIDE) and not self._is_storable():
            raise self.refuse(f"{self.value} is not an element of {self.x.type.element}")
        sizes = zip(self.before, self.x.type.shape, self.after, strict=True)
        return self.x.type.with_shape(tuple(b + d + a for b, d, a in sizes))

    def _is_storable(self) -> bool:
        """Whether plain integers or conditions have the padding element."""
        kind = self.x.type
        low, high = (0, 1) if kind.dtype is DType.BOOL else kind.dtype.limits
        whole = math.isfinite(self.value) and self.value == int(self.value)
        return kind.quant is None and whole and low <= self.value <= high

    @property
    def fill(self) -> float | int:
        """The padding element as it is stored."""
        return representable(self.x.type, self.value) if is_integer(self.x.type) else self.value

    def reference(self, x: Array) -> Array:
        widths = list(zip(fixed(self.before), fixed(self.after), strict=True))
        # np.pad refuses an empty list.
        return np.pad(x, widths, constant_values=self.fill) if widths else x
