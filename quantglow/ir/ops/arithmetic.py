"""The integer arithmetic of quantized operators, in NumPy.  One definition for every stage.

All real-valued steps are single float32 operations in a fixed order, so that any IEEE machine
gives the same integers.  Rounding is half to even; the zero point is added after rounding
(the ONNX order); the last step saturates.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from quantglow.ir.ops.native import native_ops
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.support.arrays import Array
from quantglow.support.processes.workers import each

F32 = np.float32

PART = 1 << 17
"""Values that are rounded at once: they stay in the second-level cache."""


def multiplier(*factors: npt.ArrayLike, divisor: float = 1.0) -> Array:
    """Product of the factors over ``divisor``, computed in float64, rounded once to float32."""
    product = np.ones((), np.float64)
    for factor in factors:
        product = product * np.asarray(factor, np.float64)
    return (product / divisor).astype(np.float32)


def integer_bounds(element: ElementType, low: float, high: float) -> tuple[int, int]:
    """The integers to which ``[low, high]``, in real units, and the type limit a result."""
    params = quantization(element)
    floor, ceiling = element.dtype.limits

    def to_integer(real: float) -> int:
        if math.isinf(real):
            return floor if real < 0 else ceiling
        steps = float(np.rint(F32(real) / F32(params.scale)))
        return int(min(max(steps + params.zero_point, floor), ceiling))

    return to_integer(low), to_integer(high)


def quantization(element: ElementType | TensorType) -> QuantParams:
    """The quantization parameters of a quantized element type.  Raises ``ValueError``."""
    if element.quant is None:
        raise ValueError(f"{element} is not quantized")
    return element.quant


def saturate(steps: Array, element: ElementType, low: int, high: int) -> Array:
    """``clip(rint(steps), low - zp, high - zp) + zp`` as integers; NaN becomes ``low``."""
    zero_point = np.int32(quantization(element).zero_point)
    return _saturate(steps, zero_point, element.dtype, low, high)


def saturate_over(steps: Array, element: ElementType, low: int, high: int) -> Array:
    """``saturate`` of float32 steps, which may be overwritten."""
    if element.dtype.nbytes > 2 or steps.dtype != np.float32:
        return saturate(steps, element, low, high)
    zero_point = F32(quantization(element).zero_point)
    clip_steps(steps, F32(low) - zero_point, F32(high) - zero_point)
    steps += zero_point  # Exact: all of it fits 16 bits.
    return steps.astype(element.dtype.numpy)


def _saturate(steps: Array, zero_point: Any, dtype: DType, low: int, high: int) -> Array:
    """``saturate`` for zero points of any shape that broadcasts."""
    shifted = _clip_steps(steps, F32(low - zero_point), F32(high - zero_point)).astype(np.int32)
    shifted += zero_point
    return shifted.astype(dtype.numpy)


def _clip_steps(steps: Array, lowest: Any, highest: Any) -> Array:
    """``clip(rint(steps), lowest, highest)`` in float32; NaN becomes ``lowest``."""
    rounded: Array = np.array(steps, np.float32)
    clip_steps(rounded, lowest, highest)
    return rounded


def clip_steps(steps: Array, lowest: Any, highest: Any) -> None:
    """``clip(rint(steps), lowest, highest)`` in their place; NaN becomes ``lowest``."""
    np.rint(steps, out=steps)
    if np.isnan(steps.min(initial=np.inf)):
        np.copyto(steps, lowest, where=np.isnan(steps))
    # A fifth of the time of fmax and fmin.
    np.clip(steps, lowest, highest, out=steps)


def quantize(x: Array, element: ElementType) -> Array:
    """``saturate(rint(x / scale) + zero_point)``, the ONNX QuantizeLinear."""
    params = quantization(element)
    shape = _broadcast_shape(x, params)
    scales = np.asarray(params.scales, np.float32).reshape(shape)
    zero_points = np.asarray(params.zero_points, np.int32).reshape(shape)
    with np.errstate(over="ignore", invalid="ignore"):
        steps = x.astype(np.float32, copy=False) / scales
    return _saturate(steps, zero_points, element.dtype, *element.dtype.limits)


def _broadcast_shape(x: Array, params: QuantParams) -> tuple[int, ...]:
    """The shape in which per-axis parameters broadcast to ``x``."""
    if params.axis is None:
        return ()
    return tuple(-1 if i == params.axis else 1 for i in range(x.ndim))


def dequantize(q: Array, params: QuantParams) -> Array:
    """``float32(q - zero_point) * scale``."""
    shape = _broadcast_shape(q, params)
    zero_points = np.asarray(params.zero_points, np.int32).reshape(shape)
    scales = np.asarray(params.scales, np.float32).reshape(shape)
    return (q.astype(np.int32) - zero_points).astype(np.float32) * scales


def round_reals(x: Array, element: ElementType) -> Array:
    """``dequantize(quantize(x))`` of a per-tensor type, without the integers in between."""
    params, (low, high) = quantization(element), element.dtype.limits
    scale, zero_point = F32(params.scale), params.zero_point
    flat = np.ascontiguousarray(x, np.float32).reshape(-1)
    result, native = np.empty_like(flat), native_ops()

    def round_part(start: int) -> None:
        steps = result[start : start + PART]
        if native is not None:
            bounds = (low - zero_point, high - zero_point)
            native.rounded_reals(flat[start : start + PART], params.scale, *bounds, steps)
            return
        with np.errstate(over="ignore", invalid="ignore"):
            np.divide(flat[start : start + PART], scale, out=steps)
        clip_steps(steps, F32(low - zero_point), F32(high - zero_point))
        steps *= scale

    each(round_part, range(0, flat.size, PART))
    return result.reshape(x.shape)


def center(q: Array, kind: TensorType) -> Array:
    """``q - zero_point`` as int32."""
    return q.astype(np.int32) - np.int32(kind.params.zero_point)


def representable(kind: TensorType, real: float) -> int:
    """The integer of a per-tensor type nearest to ``real``."""
    return int(quantize(np.asarray(real, np.float32), kind.element))


def is_integer(kind: TensorType) -> bool:
    """Whether tensors of the type carry quantized integers."""
    return kind.quant is not None and kind.dtype is not DType.F32
