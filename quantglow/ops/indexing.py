"""Operators that read or write where integers computed at run time say.

No index leads outside of a tensor: negative ones count from the end; beyond that ``Gather`` takes
the nearest element, and ``Scatter`` writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from quantglow.graph.node import Node, op
from quantglow.types import Array, DType, TensorType

INDEX_TYPES = (DType.I32, DType.I64)


@op
class Gather(Node):
    """The slices of ``x`` along ``axis`` at ``indices``, whose axes take the place of ``axis``."""

    x: Node
    indices: Node
    axis: int

    def infer(self) -> TensorType:
        shape = self.x.type.shape
        if self.indices.type.dtype not in INDEX_TYPES:
            raise self.refuse("indices must be int32 or int64")
        if not 0 <= self.axis < len(shape) or not shape[self.axis]:
            raise self.refuse(f"x has no elements along axis {self.axis}")
        before, after = shape[: self.axis], shape[self.axis + 1 :]
        return self.x.type.with_shape((*before, *self.indices.type.shape, *after))

    def reference(self, x: Array, indices: Array) -> Array:
        last = x.shape[self.axis] - 1
        wrapped = np.where(indices < 0, indices + last + 1, indices)
        return np.asarray(np.take(x, np.clip(wrapped, 0, last), axis=self.axis))


REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}
"""What a ``Scatter`` makes of the old and the new value."""


@op
class Scatter(Node):
    """``x`` with row ``indices[i]`` of its first axis replaced by, or combined with, row i of
    ``updates``, one after the other."""

    x: Node
    indices: Node
    updates: Node
    reduction: str = "none"

    def infer(self) -> TensorType:
        if self.indices.type.dtype not in INDEX_TYPES or self.indices.type.rank != 1:
            raise self.refuse("indices must be a vector of int32 or int64")
        rows = (*self.indices.type.shape, *self.x.type.shape[1:])
        if not self.x.type.rank or self.updates.type != self.x.type.with_shape(rows):
            raise self.refuse(f"updates must be like x, of shape {rows}")
        if self.reduction not in REDUCTIONS:
            raise self.refuse(f"reduction {self.reduction!r} is none of {[*REDUCTIONS]}")
        if self.x.type.quant is not None and self.reduction in ("add", "mul"):
            raise self.refuse("sums and products of codes are no codes")
        return self.x.type

    def reference(self, x: Array, indices: Array, updates: Array) -> Array:
        result, combine = x.copy(), REDUCTIONS[self.reduction]
        rows = np.where(indices < 0, indices + len(x), indices)
        with np.errstate(all="ignore"):
            for row, update in zip(rows, updates, strict=True):
                if 0 <= row < len(x):
                    result[row] = combine(result[row], update)
        return result


@op
class TopK(Node):
    """int64 indices of the ``k`` largest (or smallest) elements along the last axis, in order.

    Of equal elements the first comes first; NaN comes last.
    """

    x: Node
    k: int
    largest: bool = True

    def infer(self) -> TensorType:
        shape = self.x.type.shape
        if not shape or not 0 < self.k <= shape[-1]:
            raise self.refuse(f"there are no {self.k} elements along the last axis")
        if self.x.type.dtype is DType.BOOL:
            raise self.refuse("x must be numbers")
        return TensorType(DType.I64, (*shape[:-1], self.k))

    def reference(self, x: Array) -> Array:
        order = self._descending(x) if self.largest else np.argsort(x, axis=-1, kind="stable")
        return np.ascontiguousarray(order[..., : self.k]).astype(np.int64)

    def _descending(self, x: Array) -> Array:
        """A stable ascending order of the reversed row, reversed; NaN moved to the end."""
        last = x.shape[-1] - 1
        order: Array = last - np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
        if not self.x.type.dtype.is_float:
            return order
        absent = np.take_along_axis(np.isnan(x), order, axis=-1)
        return np.take_along_axis(order, np.argsort(absent, axis=-1, kind="stable"), axis=-1)
