"""Products with weights of 2, 4 or 8 bits in groups along the inner dimension.

A weight is ``(code - zero_point) * scale`` with one float32 scale, and perhaps a zero point, for
each group of each output channel.  Activations are float32, or rows that were quantized to int8
when they were computed; then the sums of groups are exact, and added in float32 in their order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from quantglow.ir.graph.kinds import Kind, taking
from quantglow.ir.graph.node import Node, op
from quantglow.ir.ops.samples import if_rows
from quantglow.ir.symbolic.size import Dim, Shape, decide
from quantglow.ir.types import DType, TensorType
from quantglow.support.arrays import Array

LARGEST = np.float32(127)
"""Magnitude of the largest code of a row."""
GREATEST_FLOAT = np.finfo(np.float32).max
BITS = (2, 4, 8)
GRAIN = 16
"""Lengths of groups are multiples of this."""
LONGEST = 2**16
"""The longest group: ``127 * 255 * 2**16`` fits int32."""
SUM_NBYTES = SCALE_NBYTES = 4


class PackedWeights(NamedTuple):
    """Operands of a ``GroupedMatMul`` as arrays."""

    codes: Array
    scales: Array
    zero_points: Array | None
    bits: int


class Rows(NamedTuple):
    """Quantized rows: int8 codes [M, G, group], int32 [M, G] their negative sums, float32
    [M, G]."""

    codes: Array
    negative_sums: Array
    scales: Array


def _check_group(node: Node, group: int) -> None:
    """Raise ``TypeRuleError`` for a length of groups that there is not."""
    if group % GRAIN or not 0 < group <= LONGEST:
        raise node.refuse(f"groups of {group} are no multiples of {GRAIN} up to {LONGEST}")


def _row_nbytes(depth: Dim, group: int) -> Dim:
    """Bytes of a quantized row of ``depth`` elements."""
    return -(-depth // group) * group_nbytes(group)


def group_nbytes(group: int) -> int:
    """Bytes of a group of a quantized row."""
    return group + SUM_NBYTES + SCALE_NBYTES


@op
class QuantizeRows(Node):
    """int8 codes ``rint(x * (127 / max|x|))`` of each group of each row of x [M, K].

    A group is written as bytes: its codes, with zeros up to a whole group, the negative sum of
    these, int32, and the scale ``max|x| / 127``, float32.  A group with an element that is no
    finite number has a scale that is none, and codes 0 where an element has no product.
    """

    x: Node
    group: int

    takes = taking(x=Kind.FLOAT)

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return {}

    def infer(self) -> TensorType:
        kind = self.x.type
        if kind.rank != 2:
            raise self.refuse("x must have 2 dimensions")
        _check_group(self, self.group)
        rows, depth = kind.shape
        return TensorType(DType.I8, (rows, _row_nbytes(depth, self.group)))

    def reference(self, x: Array) -> Array:
        rows, depth = x.shape
        filled = np.zeros((rows, -(-depth // self.group), self.group), np.float32)
        filled.reshape(rows, -1)[:, :depth] = x
        largest = np.abs(filled).max(axis=2)
        # 127 / 0 in a group of zeros: infinity times 0 would be NaN.
        factors = np.minimum(LARGEST / largest, GREATEST_FLOAT)
        steps = np.rint(filled * factors[..., None])
        codes = np.where(np.isfinite(steps), steps, 0).astype(np.int8)
        sums, scales = codes.sum(axis=2, dtype=np.int32), largest / LARGEST
        parts = (codes, _as_bytes(-sums), _as_bytes(scales))
        return np.concatenate(parts, axis=2).reshape(rows, -1)


def _as_bytes(values: Array) -> Array:
    """The bytes of [M, G], lowest first, as int8 [M, G, itemsize]."""
    stored = np.ascontiguousarray(values[..., None]).astype(values.dtype.newbyteorder("<"))
    return stored.view(np.int8)


def _dequantize_rows(stored: Array, group: int) -> Rows:
    """The parts of rows that ``QuantizeRows`` made."""
    parts = stored.reshape(len(stored), -1, group_nbytes(group))
    codes, sums, scales = np.split(parts, (group, group + SUM_NBYTES), axis=2)
    return Rows(
        codes,
        np.ascontiguousarray(sums).view("<i4")[..., 0],
        np.ascontiguousarray(scales).view("<f4")[..., 0],
    )


def pack_codes(codes: Array, bits: int) -> Array:
    """Codes [..., n] in bytes [..., n * bits / 8], the first one lowest."""
    each = 8 // bits
    parts = codes.astype(np.uint8).reshape(*codes.shape[:-1], -1, each)
    packed = np.zeros(parts.shape[:-1], np.uint8)
    for place in range(each):
        packed |= parts[..., place] << np.uint8(place * bits)
    return packed


def unpack_codes(packed: Array, bits: int) -> Array:
    """uint8 codes [..., n] of bytes [..., n * bits / 8]."""
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return parts.reshape(*packed.shape[:-1], -1)


@op
class GroupedMatMul(Node):
    """``x @ w + b``, w [K, N] of groups of K.

    w: codes of each output channel, uint8 [N, G, group * bits / 8], the first one lowest; scales
    float32 [N, G]; zero_points uint8 [N, G], ``2 ** (bits - 1)`` without; b float32 [N].

    x float32 [M, K]: the products are float32, in any precision.  x rows of ``QuantizeRows``:
    the int32 sum of each group is rounded to float32 and multiplied by the product of both scales,
    groups are added one after the other, then b.
    """

    x: Node
    w: Node
    scales: Node
    zero_points: Node | None = None
    b: Node | None = None
    bits: int

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_rows(self)

    @property
    def stored_operands(self) -> tuple[str, ...]:
        return ("w", "scales", "zero_points", "b")

    def infer(self) -> TensorType:
        if self.bits not in BITS:
            raise self.refuse(f"weights have 2, 4 or 8 bits, not {self.bits}")
        if self.w.type.dtype is not DType.U8 or self.w.type.rank != 3:
            raise self.refuse("w must be uint8 with 3 dimensions")
        _check_group(self, self.group)
        columns, groups, _ = self.w.type.fixed_shape
        points = None if self.zero_points is None else self.zero_points.type
        if self.scales.type != TensorType(DType.F32, (columns, groups)):
            raise self.refuse(f"scales must be float of shape ({columns}, {groups})")
        if points not in (None, TensorType(DType.U8, (columns, groups))):
            raise self.refuse(f"zero_points must be uint8 of shape ({columns}, {groups})")
        if self.b is not None and self.b.type != TensorType(DType.F32, (columns,)):
            raise self.refuse(f"b must be float of shape ({columns},)")
        if self.x.type.rank != 2 or not self._fits(self.x.type, groups):
            raise self.refuse(f"x has not the elements of {groups} groups of {self.group}")
        return TensorType(DType.F32, (self.x.type.shape[0], columns))

    def _fits(self, x: TensorType, groups: int) -> bool:
        if x.dtype.is_float:
            return decide(-(-x.shape[1] // self.group) == groups)
        return x.dtype is DType.I8 and decide(
            x.shape[1] == _row_nbytes(groups * self.group, self.group)
        )

    @property
    def group(self) -> int:
        """Weights of a group."""
        return self.w.type.fixed_shape[2] * 8 // self.bits

    @property
    def depth(self) -> int:
        """Length of the inner dimension, by whole groups."""
        return self.w.type.fixed_shape[1] * self.group

    @property
    def is_dynamic(self) -> bool:
        """Whether activations are quantized rows."""
        return not self.x.type.dtype.is_float

    @property
    def midpoint(self) -> int:
        """The zero point where none is given."""
        return int(2 ** (self.bits - 1))

    def reference(
        self, x: Array, w: Array, scales: Array, zero_points: Array | None, b: Array | None
    ) -> Array:
        points = (
            np.full(scales.shape, self.midpoint, np.uint8) if zero_points is None else zero_points
        )
        product = self._of_rows if self.is_dynamic else self._of_floats
        total = product(x, unpack_codes(w, self.bits), scales, points)
        return total if b is None else total + b

    def _of_rows(self, x: Array, codes: Array, scales: Array, points: Array) -> Array:
        rows = _dequantize_rows(x, self.group)
        total = np.zeros((len(x), len(codes)), np.float32)
        for group in range(codes.shape[1]):
            # float64 holds all int32 sums exactly, so that BLAS may add in any order.
            weights = codes[:, group].astype(np.float64)
            sums = rows.codes[:, group].astype(np.float64) @ weights.T
            less = rows.negative_sums[:, group].astype(np.float64)
            sums += np.multiply.outer(less, points[:, group])
            both = np.multiply.outer(rows.scales[:, group], scales[:, group])
            total += sums.astype(np.int64).astype(np.float32) * both
        return total

    def _of_floats(self, x: Array, codes: Array, scales: Array, points: Array) -> Array:
        total = np.zeros((len(x), len(codes)), np.float32)
        for group in range(codes.shape[1]):
            part = x[:, group * self.group : (group + 1) * self.group]
            centered = codes[:, group].astype(np.float32) - points[:, group, None]
            total += part @ centered[:, : part.shape[1]].T * scales[:, group]
        return total
