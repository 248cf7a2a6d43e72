"""Operators that normalize values."""

from __future__ import annotations

from tests.generators.onnx_models.drawing import Drawing, Rejected
from tests.generators.onnx_models.operators.family import draws
from tests.generators.onnx_models.operators.operands import axes_of, axis_of, positive, scores

EPSILON = 1e-2
"""Large epsilons, so that equal values are not amplified."""


@draws("LayerNormalization", "RMSNormalization", often=2)
def of_rows(d: Drawing) -> object:
    x = d.floats(2, 3, 4)
    axis = d.integer(1, x.rank - 1)
    scale = d.uniform(0.5, 1.5, *x.shape[axis:])
    if d.chance(0.5):
        return d.node("RMSNormalization", x, scale, axis=axis, epsilon=EPSILON)
    bias = (d.normal(*x.shape[axis:]),) if d.chance(0.7) else ()
    return d.node("LayerNormalization", x, scale, *bias, axis=axis, epsilon=EPSILON)


@draws("BatchNormalization", often=2)
def batch(d: Drawing) -> object:
    x = d.floats(2, 3, 4)
    n = x.shape[1]
    numbers = (d.uniform(0.5, 1.5, n), d.normal(n), d.normal(n), d.uniform(0.5, 1.5, n))
    return d.node("BatchNormalization", x, *numbers, epsilon=EPSILON)


@draws("InstanceNormalization", "GroupNormalization", often=2)
def of_channels(d: Drawing) -> object:
    x = d.floats(3, 4)
    n = x.shape[1]
    if x.size == x.shape[0] * n:
        raise Rejected("one pixel, which is its own mean")
    scale, bias = d.uniform(0.5, 1.5, n), d.normal(n)
    if d.chance(0.5):
        return d.node("InstanceNormalization", x, scale, bias, epsilon=EPSILON)
    groups = d.choose([g for g in range(1, n + 1) if n % g == 0])
    inputs = {"num_groups": groups, "epsilon": EPSILON}
    return d.shaped(x.shape, "GroupNormalization", x, scale, bias, **inputs)


@draws("LRN")
def local_response(d: Drawing) -> object:
    options = {"alpha": (0.01, 0.5), "beta": (0.5, 0.75), "bias": (1.0, 2.0)}
    return d.node("LRN", d.floats(4), size=d.choose((1, 3, 5)), **d.some(options))


@draws("LpNormalization")
def of_a_norm(d: Drawing) -> object:
    x = positive(d, d.floats(1, 2, 3, 4))
    return d.node("LpNormalization", x, axis=axis_of(d, x), p=d.integer(1, 2))


@draws("MeanVarianceNormalization")
def mean_variance(d: Drawing) -> object:
    """Normalization of values that differ: if all are equal, only rounding remains."""
    x = d.floats(4)
    if x.size == x.shape[1]:
        raise Rejected("one value for each channel")
    spread = d.inner("Add", x, d.normal(*x.shape))
    axes = {"axes": [0, 2, 3]} if d.chance(0.5) else {"axes": axes_of(d, x, 4)}
    return d.shaped(x.shape, "MeanVarianceNormalization", spread, **axes)


@draws("Softmax", "LogSoftmax")
def softmax(d: Drawing) -> object:
    x = d.floats(1, 2, 3, 4)
    return d.node(d.choose(("Softmax", "LogSoftmax")), x, axis=axis_of(d, x))


@draws("Hardmax")
def hardmax(d: Drawing) -> object:
    x = scores(d, 1, 2, 3, 4)
    return d.node("Hardmax", x, axis=axis_of(d, x))
