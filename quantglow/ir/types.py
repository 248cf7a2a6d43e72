"""Tensor types.  The quantization parameters are part of the type.

``real = scale * (q - zero_point)``
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from quantglow.ir.symbolic.size import (
    Dim,
    FixedShape,
    Shape,
    decide,
    decide_equal,
    fixed,
    integer,
    prod,
    surely_equal,
)
from quantglow.ir.symbolic.text import size_text
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property


class DType(StrEnum):
    """Element types.

    ``STRING`` and ``OPAQUE`` are values that only other runtimes compute with: tensors of strings;
    tensors whose shape is known late, and sequences, optionals and maps, each a tensor without axes
    that holds one Python object.
    """

    F32 = "f32"
    I8 = "i8"
    U8 = "u8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    BOOL = "bool"
    STRING = "string"
    OPAQUE = "opaque"

    __hash__ = str.__hash__  # that of enumerations is many times as slow

    @property
    def numpy(self) -> np.dtype[Any]:
        return _NUMPY[self]

    @property
    def nbytes(self) -> int:
        """Bytes of one element."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self is DType.F32

    @property
    def is_object(self) -> bool:
        """Whether elements are Python objects, which no compiled code sees."""
        return self is DType.STRING or self is DType.OPAQUE

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest integer of the type."""
        info = np.iinfo(self.numpy)
        return int(info.min), int(info.max)

    @property
    def ends(self) -> tuple[float, float]:
        """Smallest and largest value of the type, the infinities of floats: of nothing, they are
        the maximum and the minimum."""
        return (-np.inf, np.inf) if self.is_float else self.limits

    @staticmethod
    def of(array: Array) -> DType:
        """The element type of a NumPy array.  Raises ``TypeError`` for others."""
        dtype = _DTYPES.get(array.dtype)
        if dtype is None:
            raise TypeError(f"no element type for arrays of {array.dtype}")
        return dtype


_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.F32: np.dtype(np.float32),
    DType.I8: np.dtype(np.int8),
    DType.U8: np.dtype(np.uint8),
    DType.I16: np.dtype(np.int16),
    DType.I32: np.dtype(np.int32),
    DType.I64: np.dtype(np.int64),
    DType.BOOL: np.dtype(np.bool_),
    DType.STRING: np.dtype(np.object_),
    DType.OPAQUE: np.dtype(np.object_),
}
_DTYPES = {numpy: dtype for dtype, numpy in _NUMPY.items() if not dtype.is_object}


@dataclass(frozen=True, repr=False)
class QuantParams(Concise):
    """``scales`` and ``_zero_points`` hold one entry per tensor, or one per index of ``axis``.

    Scales are kept as Python floats, rounded to what float32 represents.
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int | None = None

    @staticmethod
    def per_tensor(scale: float, zero_point: int) -> QuantParams:
        return QuantParams((float(np.float32(scale)),), (int(zero_point),))

    @staticmethod
    def symmetric(scales: npt.ArrayLike, axis: int) -> QuantParams:
        """Per-axis parameters with zero points 0."""
        values = tuple(np.asarray(scales, np.float32).reshape(-1).tolist())
        return QuantParams(values, (0,) * len(values), axis)

    def __post_init__(self) -> None:
        if len(self.scales) != len(self.zero_points):
            raise ValueError(f"{len(self.scales)} scales but {len(self.zero_points)} zero points")
        if self.axis is None and len(self.scales) != 1:
            raise ValueError(f"per-tensor parameters need one scale, got {len(self.scales)}")
        with np.errstate(over="ignore", under="ignore"):
            rounded = np.asarray(self.scales, np.float32)
        object.__setattr__(self, "scales", tuple(rounded.tolist()))
        if not (np.isfinite(rounded) & (rounded > 0)).all():
            raise ValueError("every scale must be finite and positive")

    @property
    def scale(self) -> float:
        """The scale of a per-tensor quantization."""
        if self.axis is not None:
            raise ValueError("a per-axis quantization has no single scale")
        return self.scales[0]

    @property
    def zero_point(self) -> int:
        """The zero point of a per-tensor quantization."""
        if self.axis is not None:
            raise ValueError("a per-axis quantization has no single zero point")
        return self.zero_points[0]

    def check_storage(self, dtype: DType) -> None:
        """Raise ``ValueError`` if zero points do not fit the integers of the storage type."""
        if dtype.is_object:
            raise ValueError(f"{dtype} has no quantization parameters")
        if dtype.is_float or not any(self.zero_points):
            return
        if dtype is DType.BOOL:
            raise ValueError("conditions have no zero point")
        low, high = dtype.limits
        if min(self.zero_points) < low or max(self.zero_points) > high:
            raise ValueError(f"zero points of {dtype} must lie in [{low}, {high}]")

    def __str__(self) -> str:
        if self.axis is None:
            return f"{shortest(self.scale)!r},{self.zero_point}"
        return f"axis{self.axis}x{len(self.scales)}"


def shortest(scale: float) -> float:
    """The number with the fewest digits that rounds to the same float32, for text."""
    return float(str(np.float32(scale)))


@dataclass(frozen=True, repr=False)
class ElementType(Concise):
    """The type of one element of a tensor: storage and quantization."""

    dtype: DType
    quant: QuantParams | None = None

    def __post_init__(self) -> None:
        if self.quant is not None:
            self.quant.check_storage(self.dtype)


@dataclass(frozen=True, repr=False)
class TensorType(Concise):
    """Element type, shape and quantization of a tensor."""

    dtype: DType
    shape: Shape
    quant: QuantParams | None = None

    def __post_init__(self) -> None:
        if self.quant is not None:
            self.quant.check_storage(self.dtype)
        if self.dtype is DType.OPAQUE and self.shape:
            raise ValueError(f"an opaque value has no axes, not the shape {self.shape}")

    def __eq__(self, other: object) -> bool:
        """Whether the types are the same, free sizes by ``decide``: these last, and only those of
        equal ranks, for their guards tie a program to the answer."""
        if self is other:
            return True
        if not isinstance(other, TensorType):
            return NotImplemented
        return (
            self.dtype is other.dtype
            and len(self.shape) == len(other.shape)
            and self.quant == other.quant
            and decide_equal(self.shape, other.shape)
        )

    @property
    def element(self) -> ElementType:
        return ElementType(self.dtype, self.quant)

    @cached_property
    def size(self) -> Dim:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_empty(self) -> bool:
        """Whether there are no elements, see ``decide``."""
        return not decide(self.size != 0)

    @property
    def is_single(self) -> bool:
        """Whether there is one element, see ``decide``."""
        return decide(self.size == 1)

    @cached_property
    def fixed_shape(self) -> FixedShape:
        """The shape of a weight, or of an array that is there: no size of it is free."""
        return fixed(self.shape)

    @cached_property
    def nbytes(self) -> Dim:
        return self.size * self.dtype.nbytes

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def params(self) -> QuantParams:
        """The quantization parameters of a quantized type.  Raises ``ValueError`` on others."""
        if self.quant is None:
            raise ValueError(f"{self} is not quantized")
        return self.quant

    def surely_equals(self, other: TensorType) -> bool:
        """Whether the types are equal for all values of free dimensions."""
        return self is other or (
            self.dtype is other.dtype
            and self.quant == other.quant
            and surely_equal(self.shape, other.shape)
        )

    def with_shape(self, shape: Shape) -> TensorType:
        return TensorType(self.dtype, tuple(map(integer, shape)), self.quant)

    def with_element(self, element: ElementType) -> TensorType:
        return TensorType(element.dtype, self.shape, element.quant)

    def __str__(self) -> str:
        dims = "x".join(map(size_text, self.shape))
        quant = f"<{self.quant}>" if self.quant else ""
        return f"{self.dtype}{quant}[{dims}]"


def f32(*shape: Dim) -> TensorType:
    """The float32 tensor type of a shape."""
    return TensorType(DType.F32, shape)
