"""Operators that read or write at positions computed at run time.

Negative indices count from the end.  An index beyond that is an ``OutOfRangeError``; compiled code
takes the first element or writes nothing, and reports the index when it is done.

Positions in a flattened tensor are computed from indices of several axes.  ``misplaced_index``
stands for the position of an index that is out of range: no tensor is that large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from quantglow.ir.graph.kinds import NUMBERS, Trait, taking
from quantglow.ir.graph.node import Constant, Node, op
from quantglow.ir.ops.samples import if_constant, if_rows
from quantglow.ir.ops.shape import MOVES
from quantglow.ir.symbolic.size import Dim, Shape, decide, decide_min
from quantglow.ir.types import DType, TensorType
from quantglow.support.arrays import Array
from quantglow.support.errors import OutOfRangeError

_MISPLACED = 2**62
_LENGTHS = 2**31
_CENTER = 2**30
"""An index between -2**30 and 2**30, moved by this, and the length of its axis make the position
``2**62 + length * 2**31 + index``."""
MOST_INDEX = _CENTER - 1
"""Larger indices are reported as this one."""


def misplaced_index(length: Dim) -> Dim:
    """The position of index 0 where it is out of range for an axis of this length; those of other
    indices up to ``MOST_INDEX`` lie beside it."""
    return _MISPLACED + decide_min(length, _LENGTHS - 1) * _LENGTHS + _CENTER


def out_of_range(name: str, index: int, length: int) -> OutOfRangeError:
    """The error for an index of a Gather or Scatter of this name, which may be
    ``misplaced_index``."""
    of, at = divmod(index - _MISPLACED, _LENGTHS)
    if 0 <= of <= length:  # an axis is no longer than the tensor that has it
        length, index = of, at - _CENTER
    shown = name.removesuffix(":gathered").removesuffix(":scattered")
    return OutOfRangeError(shown, index, length)


def count(node: Node, indices: Array, length: int) -> Array:
    """Indices counted from the begin.  Raises ``OutOfRangeError``."""
    positions = np.where(indices < 0, indices + length, indices)
    outside = (positions < 0) | (positions >= length)
    if outside.any():
        raise out_of_range(node.name, int(indices[outside][0]), length)
    return positions


INDEX_TYPES = (DType.I32, DType.I64)


@op
class Gather(Node):
    """The slices of ``x`` along ``axis`` at ``indices``, whose axes take the place of ``axis``."""

    x: Node
    indices: Node
    axis: int

    traits = MOVES - {Trait.CHOOSES}

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        """A table is read by the indices of a sample, or each sample at the same ones."""
        if isinstance(self.x, Constant):
            return {} if self.axis == 0 and self.indices.type.rank else None
        return if_constant([self.indices]) if self.axis else None

    def infer(self) -> TensorType:
        shape = self.x.type.shape
        if self.indices.type.dtype not in INDEX_TYPES:
            raise self.refuse("indices must be int32 or int64")
        if not 0 <= self.axis < len(shape) or not decide(shape[self.axis] != 0):
            raise self.refuse(f"x has no elements along axis {self.axis}")
        before, after = shape[: self.axis], shape[self.axis + 1 :]
        return self.x.type.with_shape((*before, *self.indices.type.shape, *after))

    def reference(self, x: Array, indices: Array) -> Array:
        return np.asarray(np.take(x, count(self, indices, int(self.length)), axis=self.axis))

    @property
    def length(self) -> Dim:
        """Length of the axis that the indices address."""
        return self.x.type.shape[self.axis]


REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}
"""Result of a ``Scatter`` from the old and the new value."""


@op
class Scatter(Node):
    """``x`` with row ``indices[i]`` of its first axis replaced by, or combined with, row i of
    ``updates``, one after the other."""

    x: Node
    indices: Node
    updates: Node
    reduction: str = "none"

    traits = frozenset({Trait.MOVES, Trait.PASSES_SPECIALS})
    in_place = ("x",)

    def has(self, trait: Trait) -> bool:
        """``MOVES`` holds without a reduction only: sums, products and extremes are new numbers.
        Products of infinities have another sign."""
        if trait is Trait.MOVES:
            return self.reduction == "none"
        if trait is Trait.PASSES_SPECIALS:
            return self.reduction != "mul"
        return super().has(trait)

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
        for row, update in zip(count(self, indices, int(self.length)), updates, strict=True):
            result[row] = combine(result[row], update)
        return result

    @property
    def length(self) -> Dim:
        """Length of the axis that the indices address."""
        return self.x.type.shape[0]


@op
class TopK(Node):
    """int64 indices of the ``k`` largest (or smallest) elements along the last axis, in order.

    Equal elements keep their order; NaN comes last.
    """

    x: Node
    k: int
    largest: bool = True

    takes = taking(x=NUMBERS)

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_rows(self)

    def infer(self) -> TensorType:
        shape = self.x.type.shape
        if not shape or self.k < 1 or not decide(self.k <= shape[-1]):
            raise self.refuse(f"there are no {self.k} elements along the last axis")
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
