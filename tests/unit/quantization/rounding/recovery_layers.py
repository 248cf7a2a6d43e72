"""Layers with data of their own, as plain rounding leaves them."""

from __future__ import annotations

import numpy as np

from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Gemm
from quantglow.ir.types import QuantParams, f32
from quantglow.quantization.plan.params import quantize_weights
from quantglow.quantization.rounding.layer import Layer, LayerProduct
from quantglow.quantization.rounding.moments import Moments, Statistics
from quantglow.support.arrays import Array

X = QuantParams.per_tensor(0.05, 3)


def correlated_inputs(rows: int, k: int, seed: int = 0) -> Array:
    """Integers [rows, K] that share a few causes."""
    rng = np.random.default_rng(seed)
    causes = rng.normal(size=(rows, 3)) @ rng.normal(size=(3, k))
    return np.clip(np.rint(20 * causes + 4 * rng.normal(size=(rows, k)) + 10), -131, 124)


def layer_of(x: Array, w: Array, b: Array, expected: Array | None = None) -> Layer:
    """The Gemm of centred integers x [rows, K], weights [K, O] and bias [O].

    ``expected``: results to aim at, else those of the real weights.
    """
    built = quantize_weights(w.astype(np.float32), b.astype(np.float32), X)
    node = Gemm(
        name="y",
        x=Input(name="x", tensor=f32(1, len(w))),
        w=Constant(name="w", value=w.astype(np.float32)),
    )
    product = LayerProduct(node)
    real = w * X.scale
    missing = np.zeros((len(x), len(b))) if expected is None else expected - (x @ real + b)
    halves = tuple(Moments.zeros(product.shape) for _ in range(2))
    for half, moments in enumerate(halves):
        moments.add(x[None, half::2].astype(np.float32), missing[None, half::2].astype(np.float32))
    steps = (built.scales.astype(np.float64) * X.scale).reshape(1, 1, -1)
    in_steps = (real / steps).astype(np.float32)
    return Layer(
        product=product,
        x=X,
        statistics=Statistics(halves),
        weights=in_steps,
        target=in_steps,
        integers=built.weights.astype(np.float32)[None],
        unit=steps,
        steps=steps,
        reach=steps,
        real_bias=b.reshape(1, 1, -1).astype(np.float64),
        bias=b.reshape(1, 1, -1).astype(np.float64),
    )


def square_error(layer: Layer, x: Array, y: Array) -> Array:
    """Mean square error of each channel, [O]."""
    result = x @ (layer.integers * layer.steps)[0] + layer.bias[0]
    return np.asarray(((result - y) ** 2).mean(axis=0))


def data_error(layer: Layer) -> Array:
    """Mean square error of each channel on its data up to a constant, [G, O/G], from moments, in
    units squared.
    """
    moments = layer.moments
    distance = layer.integers * (layer.steps / layer.unit) - layer.weights
    pull = 2 * moments.cross_covariance() / layer.unit
    return np.asarray((distance * (moments.covariance() @ distance - pull)).sum(axis=1))


def real_weights(layer: Layer, weights: Array | None = None) -> Array:
    """[G, K, O/G]: weights of the layer, by default the real ones, in reals."""
    return np.asarray((layer.weights if weights is None else weights) * layer.unit)
