"""Quantized arithmetic in Python integers and doubles, written without NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.support.arrays import Array

Index = tuple[int, ...]


def element(scale: float, zero_point: int, dtype: DType = DType.I8) -> ElementType:
    return ElementType(dtype, QuantParams.per_tensor(scale, zero_point))


def tensor(shape: tuple[int, ...], kind: ElementType, name: str = "x") -> Input:
    return Input(name=name, tensor=TensorType(kind.dtype, shape, kind.quant))


def floats(shape: tuple[int, ...], name: str = "x") -> Input:
    return Input(name=name, tensor=TensorType(DType.F32, shape))


def constant(value: Array, kind: ElementType | None = None, name: str = "c") -> Constant:
    return Constant(name=name, value=value, element=kind)


def single(value: float) -> float:
    """Rounded once to float32.  Products of two float32 are exact in double before that."""
    return float(np.float32(value))


def stored(steps: float, kind: ElementType, low: float = -np.inf, high: float = np.inf) -> int:
    """Steps to the integer of a per-tensor type; Python rounds half to even."""
    assert kind.quant is not None
    lowest, highest = kind.dtype.limits
    zero_point, scale = kind.quant.zero_point, kind.quant.scale
    if low > -np.inf:
        lowest = max(lowest, round(single(low / scale)) + zero_point)
    if high < np.inf:
        highest = min(highest, round(single(high / scale)) + zero_point)
    return int(min(max(round(steps) + zero_point, lowest), highest))


def scaled(total: int, multiplier: float) -> float:
    """``float32(total) * float32(multiplier)`` in float32."""
    return single(single(total) * single(multiplier))


def indices(shape: tuple[int, ...]) -> Iterator[Index]:
    return product(*map(range, shape))


def filled(node: Node, value: Callable[[Index], float]) -> Array:
    """The array of the node's type whose elements are ``value(index)``."""
    result = np.zeros(node.type.shape, node.type.dtype.numpy)
    for index in indices(node.type.shape):
        result[index] = value(index)
    return result
