"""Operators that move elements.  Quantization parameters pass through."""

from __future__ import annotations

import math

import numpy as np

from quantglow.graph.node import Node, op
from quantglow.ops.arithmetic import is_integer, representable
from quantglow.types import Array, TensorType


@op
class Reshape(Node):
    """The same elements, in row-major order, under another shape."""

    x: Node
    shape: tuple[int, ...]

    def infer(self) -> TensorType:
        if math.prod(self.shape) != self.x.type.size or min(self.shape, default=1) < 0:
            raise self.refuse(f"{self.x.type.size} elements do not fill shape {self.shape}")
        return self.x.type.with_shape(self.shape)

    def reference(self, x: Array) -> Array:
        return x.reshape(self.shape)


@op
class Transpose(Node):
    """Axis i of the result is axis ``perm[i]`` of x."""

    x: Node
    perm: tuple[int, ...]

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
    shape: tuple[int, ...]

    def infer(self) -> TensorType:
        try:
            fits = np.broadcast_shapes(self.x.type.shape, self.shape) == tuple(self.shape)
        except ValueError:
            fits = False
        if not fits:
            raise self.refuse(f"x does not broadcast to {self.shape}")
        return self.x.type.with_shape(self.shape)

    def reference(self, x: Array) -> Array:
        return np.broadcast_to(x, self.shape)


@op
class Concat(Node):
    """Parts of one element type, joined along ``axis``."""

    parts: tuple[Node, ...]
    axis: int

    def infer(self) -> TensorType:
        first = self.parts[0].type
        if not 0 <= self.axis < first.rank:
            raise self.refuse(f"axis {self.axis} is outside rank {first.rank}")
        for part in self.parts:
            if part.type.element != first.element:
                raise self.refuse("all parts must have the same element type")
            if part.type.rank != first.rank or any(
                a != b
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
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    def infer(self) -> TensorType:
        rank = self.x.type.rank
        if not len(self.starts) == len(self.sizes) == len(self.steps) == rank:
            raise self.refuse("starts, sizes and steps need one entry for each axis")
        for d, start, size, step in zip(
            self.x.type.shape, self.starts, self.sizes, self.steps, strict=True
        ):
            last = start + (size - 1) * step
            if size < 0 or (size and not (0 <= start < d and 0 <= last < d)):
                raise self.refuse(f"start {start}, size {size}, step {step} leave an axis of {d}")
        return self.x.type.with_shape(self.sizes)

    def reference(self, x: Array) -> Array:
        index = [
            start + np.arange(size) * step
            for start, size, step in zip(self.starts, self.sizes, self.steps, strict=True)
        ]
        return x[np.ix_(*index)] if index else x


@op
class Pad(Node):
    """x with ``before``/``after`` elements of ``value`` (a real number) along each axis."""

    x: Node
    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float = 0.0

    def infer(self) -> TensorType:
        rank = self.x.type.rank
        if len(self.before) != rank or len(self.after) != rank:
            raise self.refuse("before and after need one entry for each axis")
        if min((*self.before, *self.after), default=0) < 0:
            raise self.refuse("negative pads are written as Slice")
        sizes = zip(self.before, self.x.type.shape, self.after, strict=True)
        return self.x.type.with_shape(tuple(b + d + a for b, d, a in sizes))

    @property
    def fill(self) -> float | int:
        """The padding element as it is stored."""
        return representable(self.x.type, self.value) if is_integer(self.x.type) else self.value

    def reference(self, x: Array) -> Array:
        widths = list(zip(self.before, self.after, strict=True))
        # np.pad refuses an empty list.
        return np.pad(x, widths, constant_values=self.fill) if widths else x
