"""A layer seen as ``columns @ matrix`` is the layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Conv, ConvTranspose, Gemm
from quantglow.ir.types import f32
from quantglow.quantization.rounding import layer as products
from quantglow.quantization.rounding.layer import LayerProduct

LAYERS: dict[str, Any] = {
    "plain": (Conv, (3, 3, 4, 6), {"pads": (1, 0, 2, 1)}),
    "strided": (Conv, (2, 3, 4, 6), {"strides": (2, 3)}),
    "dilated": (Conv, (2, 2, 4, 6), {"dilations": (2, 3), "pads": (1, 1, 1, 1)}),
    "grouped": (Conv, (3, 3, 2, 6), {"group": 2}),
    "depthwise": (Conv, (3, 3, 1, 4), {"group": 4, "pads": (1, 1, 1, 1)}),
    "multiplied": (Conv, (3, 3, 1, 8), {"group": 4}),
    "transposed": (ConvTranspose, (3, 2, 4, 6), {"strides": (2, 2), "pads": (1, 0, 0, 1)}),
    "transposed in groups": (ConvTranspose, (2, 2, 2, 6), {"group": 2}),
    "gemm": (Gemm, (4, 6), {}),
}


def layer(name: str) -> Any:
    kind, shape, attributes = LAYERS[name]
    w = np.random.default_rng(1).integers(-9, 9, shape).astype(np.float32)
    x = Input(name="x", tensor=f32(3, 4) if kind is Gemm else f32(2, 9, 8, 4))
    return kind(name="y", x=x, w=Constant(name="w", value=w), **attributes)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("band_nbytes", [1, 2**25])
def test_columns_times_matrix_are_the_results(
    name: str, band_nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "BAND_NBYTES", band_nbytes)
    node = layer(name)
    x = np.random.default_rng(2).integers(-9, 9, node.x.type.shape).astype(np.float32)
    expected = node.evaluate(x, node.w.value)
    product = LayerProduct(node)
    for columns, result in product.bands(x, expected):
        np.testing.assert_array_equal(columns @ product.matrix(node.w.value), result)


@pytest.mark.parametrize("name", LAYERS)
def test_weights_undoes_matrix(name: str) -> None:
    node = layer(name)
    product = LayerProduct(node)
    np.testing.assert_array_equal(product.weights(product.matrix(node.w.value)), node.w.value)
    assert product.matrix(node.w.value).shape == product.shape


@pytest.mark.parametrize(
    ("every", "first", "lines"),
    [(1, 0, {0, 1, 2}), (3, 0, {0}), (3, 1, {1}), (3, 5, {2}), (2, 1, {1}), (7, 4, {1})],
)
def test_bands_have_rows_at_a_stride_from_the_first(
    every: int, first: int, lines: set[int]
) -> None:
    x = Input(name="x", tensor=f32(1, 3, 2, 4))
    w = Constant(name="w", value=np.ones((1, 1, 4, 2), np.float32))
    values = np.broadcast_to(np.arange(3, dtype=np.float32).reshape(1, 3, 1, 1), (1, 3, 2, 4))
    bands = LayerProduct(Conv(name="y", x=x, w=w)).bands(values, values, every=every, first=first)
    actual = [(set(columns.flat), set(result.flat)) for columns, result in bands]
    assert actual == [(lines, lines)]
