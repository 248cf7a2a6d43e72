"""Results that ONNX leaves open, so that they depend on onnxruntime's kernels.

Extremes of NaN: ONNX's reference, NumPy and quantglow give NaN; onnxruntime ignores NaN or gives
it, by operator, length and processor; also where an extreme is scattered.

Infinities clipped on one side: the other bound is the largest number in the specification, and
infinite in ONNX's reference.

The loss of a single class: a zero of either sign, which Reciprocal turns into infinities.

Products of infinity with a value that is 0 but for rounding: an infinity of either sign, or NaN.

Weighted sums of infinities, as weights may be 0 or left out.

Fourier transforms of infinities, which are multiplied by factors that are 0 but for rounding.

Sums of which a part may overflow: infinite in one order, finite in another one.

Normalizations of values whose squares overflow: differences of infinities, and scales of 0; and
of equal values, whose rounding errors are scaled.

Steps at a value that is a whole number but for rounding: the one below or above; integers and
booleans of such values, also where one side saturates, as Tanh does at 1.  Round at a half, and at
0, whose sign a quotient shows.  Comparisons of values that are equal but for rounding.

Normalizer's signs: onnxruntime computes squares in place, and then has lost which were negative.

Integers of a range found in the data, where a value or the zero point lies between two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.generators.onnx_models.models import Feeds, read_by

Values = NDArray[np.generic]
Run = Callable[[onnx.ModelProto, Feeds], list[Any]]
"""onnxruntime."""

EXTREMES = (
    *("ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool", "MaxRoiPool"),
    *("TopK", "ArgMax", "ArgMin", "Hardmax"),
)
LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
PRODUCTS = ("MatMul", "Gemm", "Mul", "Conv", "ConvTranspose", "Einsum")
SUMS = ("ReduceSum", "ReduceMean", "GlobalAveragePool", "AveragePool", "CumSum")
NORMALIZATIONS = (
    *("LayerNormalization", "GroupNormalization", "InstanceNormalization"),
    *("RMSNormalization", "MeanVarianceNormalization", "LpNormalization"),
)
WEIGHTED = (
    *("MatMulNBits", "LinearRegressor", "LinearClassifier", "RNN", "GRU", "LSTM"),
    *("Attention", "QAttention", "MultiHeadAttention", "GroupQueryAttention", "LinearAttention"),
    *("Resize", "Upsample", "GridSample", "RoiAlign", "DeformConv", "Col2Im"),
    *("LpPool", "GlobalLpPool", "RotaryEmbedding"),
)
TRANSFORMS = ("DFT", "STFT")
SCATTERS = ("Scatter", "ScatterElements", "ScatterND")
COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
STEPS = ("Ceil", "Floor", "Sign", "Cast")
LARGEST = float(np.finfo(np.float32).max)
ROUNDING = 1e-6
"""Differences of less than this part of the largest value may be rounding."""
CANCELLATION = 1e-2
"""Values that differ by less than this part of the largest one have squares that cancel."""


def holds_nan(values: Values, *_: Values) -> bool:
    return values.dtype.kind == "f" and bool(np.isnan(values).any())


def holds_no_numbers(values: Values, *_: Values) -> bool:
    """Whether a range has no end."""
    return not bool(np.isfinite(values).all())


def holds_infinities(values: Values, *_: Values) -> bool:
    return values.dtype.kind == "f" and _holds_infinity(values)


def transforms_are_open(signal: Values, *_: Values) -> bool:
    """Whether a sum over a signal has infinite terms, or a part of it may overflow."""
    return holds_no_numbers(signal) or sums_may_overflow(signal)


def has_infinite_squares(values: Values, *_: Values) -> bool:
    """Whether a sum of squares has infinities, of which some are taken off."""
    with np.errstate(over="ignore"):
        return not bool(np.isfinite(np.square(values)).all())


def normalizations_are_open(values: Values, *_: Values) -> bool:
    """Whether the squares of values, or a part of their sum, may overflow, or values differ by
    rounding only, which is divided by itself."""
    if values.dtype.kind != "f" or not values.size:
        return False
    largest = _largest(values)
    spread = values.max(axis=-1) - values.min(axis=-1)
    return largest**2 * values.size > LARGEST or bool((spread <= ROUNDING * largest).any())


def normalizations_cancel(values: Values, *_: Values) -> bool:
    """Whether values differ by so little beside their mean that onnxruntime, which takes the square
    of the mean off the mean of the squares, keeps few digits of their variance."""
    if values.dtype.kind != "f" or not values.size:
        return False
    spread = values.max(axis=-1) - values.min(axis=-1)
    is_near = spread <= CANCELLATION * _largest(values)
    return normalizations_are_open(values) or bool(is_near.any())


def comparisons_are_open(x: Values, y: Values) -> bool:
    """Whether two floats are equal, perhaps but for rounding."""
    if x.dtype.kind != "f" or not x.size or not y.size:
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(x - y)
    return bool((apart <= ROUNDING * max(_largest(x), _largest(y))).any())


def holds_negative_numbers(values: Values, *_: Values) -> bool:
    return values.dtype.kind in "fi" and bool((values < 0).any())


def has_one_class(values: Values, *_: Values) -> bool:
    return values.shape[1] == 1


def sums_may_overflow(values: Values, *_: Values) -> bool:
    return values.dtype.kind == "f" and _largest(values) * values.size > LARGEST


def products_are_open(*operands: Values) -> bool:
    """Whether infinities meet rounding, or a part of a sum of products may overflow."""
    floats = [np.abs(x) for x in operands if x.dtype.kind == "f"]
    if len(floats) > 1 and _largest(floats[0]) * _largest(floats[1]) * floats[1].size > LARGEST:
        return True
    return any(map(_holds_infinity, floats)) and any(is_next_to(x, 0.0) for x in floats)


def weighted_sums_are_open(*operands: Values) -> bool:
    """Whether a sum has terms that are no numbers, or a part of it may overflow."""
    floats = [x for x in operands if x.dtype.kind == "f" and x.size]
    with np.errstate(over="ignore"):
        bound = np.prod([max(1.0, _largest(x)) for x in floats]) * max(x.size for x in operands)
    return not all(np.isfinite(x).all() for x in floats) or bool(bound > LARGEST)


def any_holds_nan(*operands: Values) -> bool:
    return any(map(holds_nan, operands))


def has_rounding_at_a_step(values: Values) -> bool:
    if values.dtype.kind != "f":
        return False
    wholes = np.rint(values)
    return is_next_to(values, wholes) or has_saturated(values, wholes)


def has_saturated(values: Values, wholes: Values) -> bool:
    """Whether some values are 1 or -1 among fractions."""
    return bool((np.abs(values) == 1).any() and not (values == wholes).all())


def has_rounding_at_a_half(values: Values) -> bool:
    return is_next_to(values, np.floor(values) + 0.5) or is_next_to(values, 0.0)


def range_is_open(values: Values) -> bool:
    """Whether a range has no end, or rounding decides between two of its 256 integers."""
    if holds_no_numbers(values) or not values.size:
        return True
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    quotients = np.append(values.ravel(), low) / ((high - low) / 255 or 1.0)
    return bool((np.abs(quotients - np.floor(quotients) - 0.5) < 256 * ROUNDING).any())


def states_are_open(x: Values, *others: Values) -> bool:
    """Whether rounding decides integers of the input, or there are states between steps, of which
    nothing is known."""
    return len(x) > 1 or any(range_is_open(v) for v in (x, *others) if v.dtype.kind == "f")


def _holds_infinity(sizes: Values) -> bool:
    return bool(np.isinf(sizes).any())


def _largest(values: Values) -> float:
    """The largest number."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def is_next_to(values: Values, places: Values | float) -> bool:
    """Whether a value has a place but for rounding, as far as the largest one is rounded."""
    numbers = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        apart = np.abs(values - places)
    largest = np.abs(values[numbers]).max(initial=0)
    return bool((numbers & (apart > 0) & (apart < ROUNDING * largest)).any())


OpenResults = Mapping[str, Callable[..., bool]]
"""Operator -> the operands for which its result is open."""

ROUNDED: OpenResults = {
    **dict.fromkeys(PRODUCTS, products_are_open),
    **dict.fromkeys(SUMS, sums_may_overflow),
    **dict.fromkeys(NORMALIZATIONS, normalizations_are_open),
    **dict.fromkeys(WEIGHTED, weighted_sums_are_open),
    **dict.fromkeys(TRANSFORMS, transforms_are_open),
    **dict.fromkeys(COMPARISONS, comparisons_are_open),
    **dict.fromkeys(STEPS, has_rounding_at_a_step),
    "Round": has_rounding_at_a_half,
    "LRN": has_infinite_squares,
    "DynamicQuantizeLinear": range_is_open,
    "DynamicQuantizeMatMul": lambda x, *_: range_is_open(x),
    "DynamicQuantizeLSTM": states_are_open,
}
"""Results that depend on rounding or on the order of sums, in which interpreter and kernels may
differ."""

OPEN: OpenResults = {
    **ROUNDED,
    **dict.fromkeys(NORMALIZATIONS, normalizations_cancel),
    **dict.fromkeys(EXTREMES, holds_nan),
    **dict.fromkeys(SCATTERS, any_holds_nan),
    **dict.fromkeys(LOSSES, has_one_class),
    "Clip": holds_infinities,
    "Normalizer": holds_negative_numbers,
}
"""All results that ONNX leaves open."""


def unspecified_outputs(
    model: onnx.ModelProto, feeds: Feeds, run: Run, open_results: OpenResults = OPEN
) -> frozenset[str]:
    """The outputs that depend on an open result."""
    values = operands(model, feeds, run)
    actual: set[str] = set()
    for node in model.graph.node:
        is_open = node.op_type in open_results and open_results[node.op_type](
            *(values[name] for name in node.input if name)
        )
        if is_open or not actual.isdisjoint(read_by(node)):
            actual.update(node.output)
    return frozenset(actual.intersection(output.name for output in model.graph.output))


def operands(model: onnx.ModelProto, feeds: Feeds, run: Run) -> dict[str, Values]:
    """The operands of the operators in ``OPEN``."""
    nodes = [node for node in model.graph.node if node.op_type in OPEN]
    names = dict.fromkeys(name for node in nodes for name in node.input if name)
    if not names:
        return {}
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    del shown.graph.output[:]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return dict(zip(names, run(shown, feeds), strict=True))
