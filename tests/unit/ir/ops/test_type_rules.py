"""Operators that a type rule accepts stay inside their operands: generated code does not check."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import (
    AntialiasedResize,
    AveragePool,
    Conv,
    ConvTranspose,
    Gemm,
    MaxPool,
    ReduceMax,
    ReduceMin,
    Resize,
)
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType, f32
from quantglow.support.errors import TypeRuleError

IMAGE = Input(name="x", tensor=f32(1, 8, 8, 4))
WINDOWS: list[dict[str, Any]] = [
    {"strides": (0, 1)},
    {"strides": (1, -1)},
    {"strides": (1, 2**40)},
    {"dilations": (-3, 1)},
    {"dilations": (1, 0)},
    {"dilations": (2**40, 1)},
]
PADS: list[dict[str, Any]] = [
    {"pads": (-1, 0, 2, 0)},
    {"pads": (0, 0, 0, -9)},
    {"pads": (2**62, 0, 0, 0), "strides": (2**60, 1)},
]


def weights(*shape: int) -> Constant:
    return Constant(name="w", value=np.ones(shape, np.float32))


@pytest.mark.parametrize("attributes", [*WINDOWS, *PADS, {"group": 0}, {"group": -2}], ids=str)
def test_a_conv_that_leaves_its_operands_is_refused(attributes: dict[str, Any]) -> None:
    with pytest.raises(TypeRuleError):
        Conv(name="conv", x=IMAGE, w=weights(3, 3, 4, 4), **attributes)


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (3, 0, 4, 4)], ids=str)
def test_a_conv_without_taps_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(TypeRuleError, match="kernel"):
        Conv(name="conv", x=IMAGE, w=weights(*shape))


@pytest.mark.parametrize("attributes", [*WINDOWS, {"group": 0}], ids=str)
def test_a_transposed_conv_that_leaves_its_operands_is_refused(attributes: dict[str, Any]) -> None:
    with pytest.raises(TypeRuleError):
        ConvTranspose(name="conv", x=IMAGE, w=weights(3, 3, 4, 4), **attributes)


@pytest.mark.parametrize("op", [MaxPool, AveragePool])
@pytest.mark.parametrize("attributes", [*WINDOWS, *PADS, {"kernel": (0, 2)}, {"kernel": (-1, 2)}])
def test_a_pool_that_leaves_its_operand_is_refused(
    op: type[Node], attributes: dict[str, Any]
) -> None:
    with pytest.raises(TypeRuleError):
        op(name="pool", x=IMAGE, **{"kernel": (3, 3), **attributes})


@pytest.mark.parametrize(
    "attributes",
    [
        {"sizes": (0, 4)},
        {"sizes": (4, -1)},
        {"scales": (0.0, 2.0)},
        {"scales": (2.0, -2.0)},
        {"scales": (1e-50, 2.0)},
        {"scales": (math.nan, 2.0)},
        {"scales": (2.0, math.inf)},
        {"rounding": "up"},
    ],
    ids=str,
)
def test_a_resize_that_leaves_its_operand_is_refused(attributes: dict[str, Any]) -> None:
    with pytest.raises(TypeRuleError):
        Resize(name="big", x=IMAGE, **{"sizes": (16, 16), "scales": (2.0, 2.0), **attributes})


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_integers_and_nearest_pixels_are_not_antialiased(mode: str) -> None:
    x = IMAGE if mode == "nearest" else integers(DType.I8, 1, 8, 8, 4)
    with pytest.raises(TypeRuleError, match="only linear interpolation of floats"):
        AntialiasedResize(name="y", x=x, sizes=(4, 4), scales=(0.5, 0.5), mode=mode)


@pytest.mark.parametrize(
    ("size", "scale", "reason"),
    [(4, 1e-9, "8 pixels times 1e-09 are not 4"), (2**24, 2.0**21, "take more than 67108864")],
)
def test_weights_of_antialiasing_have_a_limit(size: int, scale: float, reason: str) -> None:
    """Texts of graphs are not trusted."""
    with pytest.raises(TypeRuleError, match=reason):
        AntialiasedResize(name="y", x=IMAGE, sizes=(8, size), scales=(1.0, scale))


def integers(dtype: DType, *shape: int, axis: int | None = None) -> Node:
    count = 1 if axis is None else shape[axis]
    quant = QuantParams((0.5,) * count, (0,) * count, axis)
    return Input(name=f"{dtype}", tensor=TensorType(dtype, shape, quant))


@pytest.mark.parametrize(
    ("x", "w"),
    [(DType.I32, DType.I8), (DType.I64, DType.I8), (DType.I8, DType.I32), (DType.I8, DType.I16)],
)
def test_a_product_of_other_integers_is_refused(x: DType, w: DType) -> None:
    with pytest.raises(TypeRuleError, match=" must be "):
        Gemm(name="gemm", x=integers(x, 2, 3), w=integers(w, 3, 4, axis=1))


@pytest.mark.parametrize(
    ("dtype", "zero_point"),
    [(DType.I8, 128), (DType.I8, -129), (DType.U8, -1), (DType.I32, 2**31), (DType.BOOL, 1)],
)
@pytest.mark.parametrize("kind", [ElementType, lambda d, q: TensorType(d, (2,), q)])
def test_a_zero_point_outside_the_storage_type_is_refused(
    kind: Any, dtype: DType, zero_point: int
) -> None:
    with pytest.raises(ValueError, match="zero point"):
        kind(dtype, QuantParams.per_tensor(0.5, zero_point))


@pytest.mark.parametrize("reduction", [ReduceMax, ReduceMin])
def test_extremes_over_an_axis_of_parameters_are_plain_integers(reduction: type[Node]) -> None:
    params = QuantParams((0.5, 0.25, 2.0, 1.0), (0,) * 4, axis=3)
    x = Input(name="x", tensor=TensorType(DType.I8, (1, 8, 8, 4), params))
    built = reduction(name="y", x=x, axes=(3,), keepdims=False)
    assert built.type == TensorType(DType.I8, (1, 8, 8))
