"""How each operator is drawn: operands that fit, attributes of every kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.fuzz.drawing import CONDITION, FLOAT, INTEGER, Drawing, Rejected, Value

Draw = Callable[[Drawing], object]

UNARY = (
    *("Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh"),
    *("Erf", "Gelu", "Mish", "Softplus", "Softsign", "ThresholdedRelu", "Shrink", "Identity"),
    *("Neg", "Abs", "Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Atan", "Sinh"),
)
POSITIVE = ("Sqrt", "Log", "Reciprocal")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
LOGICAL = ("And", "Or", "Xor")
REDUCTIONS = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"),
    *("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"),
)


def unary(d: Drawing) -> object:
    return d.node(d.choose(UNARY), d.floats())


def positive(d: Drawing) -> object:
    """Functions that are only defined, or only tame, above zero."""
    magnitude = d.node("Abs", d.floats())
    shifted = d.node("Add", magnitude, d.constant(np.float32(0.25)))
    op = d.choose((*POSITIVE, "Pow", "Exp"))
    if op == "Pow":
        exponent = d.choose((0.5, 2.0, 3.0, -1.0, 1.7))
        return d.node("Pow", shifted, d.constant(np.float32(exponent)))
    if op == "Exp":
        return d.node("Exp", d.node("Neg", shifted))
    return d.node(op, shifted)


def clip(d: Drawing) -> object:
    low, high = sorted(d.rng.uniform(-2, 6, 2).astype(np.float32))
    bounds = [d.constant(low) if d.chance(0.8) else None, d.constant(high)]
    return d.node("Clip", d.floats(), *(bounds if d.chance(0.8) else bounds[:1]))


def prelu(d: Drawing) -> object:
    x = d.floats()
    return d.node("PRelu", x, d.constant(d.rng.uniform(-1, 1, tail(d, x)).astype(np.float32)))


def tail(d: Drawing, x: Value) -> tuple[int, ...]:
    """A shape that broadcasts to that of x: some leading dimensions gone, some others 1."""
    kept = x.shape[d.integer(0, x.rank) :]
    return tuple(1 if d.chance(0.4) else size for size in kept)


def broadcastable(d: Drawing, x: Value) -> Value:
    """Another value, or a constant, to combine with x."""
    others = [v for v in d.values if v.element == x.element and fits(v.shape, x.shape)]
    if others and d.chance(0.6):
        return d.choose(others)
    shape = tail(d, x)
    if x.element == FLOAT:
        return d.constant(d.rng.normal(0, 1, shape).astype(np.float32))
    if x.element == CONDITION:
        return d.constant(d.rng.random(shape) < 0.5)
    return d.constant(d.rng.integers(-5, 6, shape))


def fits(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(1 in (m, n) or m == n for m, n in zip(a[::-1], b[::-1], strict=False))


def binary(d: Drawing) -> object:
    x = d.floats()
    pair = [x, broadcastable(d, x)]
    if d.chance(0.3):
        pair.reverse()
    return d.node(d.choose(BINARY), *pair)


def divide(d: Drawing) -> object:
    x = d.floats()
    size = np.abs(d.rng.normal(0, 1, tail(d, x))) + 0.5
    return d.node("Div", x, d.constant(size.astype(np.float32)))


def variadic(d: Drawing) -> object:
    x = d.floats()
    operands = [x, *(broadcastable(d, x) for _ in range(d.integer(0, 2)))]
    return d.node(d.choose(("Sum", "Mean", "Max", "Min")), *operands)


def convolution(d: Drawing) -> object:
    x = d.floats(3, 4)
    channels, spatial = x.shape[1], x.shape[2:]
    group = d.choose([g for g in (1, 1, 2, channels) if channels % g == 0])
    if d.chance(0.25):
        return transposed(d, x, group)
    outputs = group * d.choose((1, 2, 3, 5))
    kernel = [d.integer(1, min(size + 1, 5)) for size in spatial]
    w = d.weights(outputs, channels // group, *kernel)
    b = (d.constant(d.rng.normal(0, 0.3, outputs).astype(np.float32)),) if d.chance(0.7) else ()
    attributes = window(d, kernel)
    refuse_outside(attributes, kernel, spatial)
    return d.node("Conv", x, w, *b, group=group, kernel_shape=kernel, **attributes)


def refuse_outside(attributes: dict[str, Any], kernel: Sequence[int], sizes: Sequence[int]) -> None:
    """Shape inference accepts windows larger than their padded input."""
    pads = attributes.get("pads", [0] * 2 * len(kernel))
    steps = attributes.get("dilations", [1] * len(kernel))
    padded = [sum(ends) for ends in zip(sizes, pads, pads[len(kernel) :], strict=False)]
    if any((k - 1) * s >= p for k, s, p in zip(kernel, steps, padded, strict=True)):
        raise Rejected("the window is larger than its input")


def transposed(d: Drawing, x: Value, group: int) -> object:
    kernel = [d.integer(1, 3) for _ in x.shape[2:]]
    w = d.weights(x.shape[1], d.integer(1, 4), *kernel)
    attributes: dict[str, Any] = {
        "strides": [d.integer(1, 3) for _ in kernel],
        "pads": [d.integer(0, k // 2) for k in kernel] * 2,
    }
    if d.chance(0.3):
        attributes["output_padding"] = [d.integer(0, s - 1) for s in attributes["strides"]]
    return d.node("ConvTranspose", x, w, group=group, kernel_shape=kernel, **attributes)


def window(d: Drawing, kernel: Sequence[int], dilated: bool = True) -> dict[str, Any]:
    """Strides, pads and dilations of a window."""
    attributes: dict[str, Any] = {"strides": [d.integer(1, 3) for _ in kernel]}
    if dilated and d.chance(0.3):
        attributes["dilations"] = [d.integer(1, 2) for _ in kernel]
    # onnxruntime leaves dilations out of automatic pads, against ONNX; and where strides leave
    # elements out, the pads would be negative, of which ONNX says nothing.
    covered = all(s <= k for s, k in zip(attributes["strides"], kernel, strict=True))
    if d.chance(0.2) and covered and "dilations" not in attributes:
        attributes["auto_pad"] = d.choose(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif d.chance(0.7):
        attributes["pads"] = [d.integer(0, k // 2) for _ in range(2) for k in kernel]
    return attributes


def pool(d: Drawing) -> object:
    x = d.floats(3, 4)
    if d.chance(0.2):
        return d.node(d.choose(("GlobalAveragePool", "GlobalMaxPool")), x)
    kernel = [d.integer(1, min(size, 4)) for size in x.shape[2:]]
    op = d.choose(("MaxPool", "AveragePool"))
    # A dilated window beyond the input has no meaning; onnxruntime gives a result all the same.
    roomy = all(2 * k - 1 <= size for k, size in zip(kernel, x.shape[2:], strict=True))
    attributes = window(d, kernel, dilated=roomy and op == "MaxPool")
    if op == "AveragePool":
        attributes["count_include_pad"] = d.integer(0, 1)
    # Windows that begin behind the input: ONNX's shape inference counts them, runtimes do not.
    overlapping = all(s <= k for s, k in zip(attributes["strides"], kernel, strict=True))
    ceil = d.integer(0, 1) if overlapping else 0
    return d.node(op, x, kernel_shape=kernel, ceil_mode=ceil, **attributes)


def gemm(d: Drawing) -> object:
    x = d.floats(2)
    transposes = {"transA": d.integer(0, 1), "transB": d.integer(0, 1)}
    k, n = x.shape[0 if transposes["transA"] else 1], d.choose((1, 3, 8, 17))
    w = d.weights(n, k) if transposes["transB"] else d.weights(k, n)
    b = (d.constant(d.rng.normal(0, 1, d.choose(((n,), (1, n), (1,)))).astype(np.float32)),)
    factors = {"alpha": d.choose((1.0, 0.5)), "beta": d.choose((1.0, 0.25))}
    return d.node("Gemm", x, w, *(b if d.chance(0.7) else ()), **transposes, **factors)


def matmul(d: Drawing) -> object:
    x = d.floats()
    if x.rank == 0:
        raise Rejected("a scalar")
    partners = [
        v for v in d.values if v.element == FLOAT and v.rank > 1 and v.shape[-2] == x.shape[-1]
    ]
    if partners and d.chance(0.5):
        return d.node("MatMul", x, d.choose(partners))
    if x.rank > 1 and d.chance(0.3):
        order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
        return d.node("MatMul", x, d.node("Transpose", x, perm=order))
    return d.node("MatMul", x, d.weights(x.shape[-1], d.choose((1, 4, 9, 16))))


def normalization(d: Drawing) -> object:
    op = d.choose(("BatchNormalization", "InstanceNormalization", "LayerNormalization", "LRN"))
    if op == "LayerNormalization":
        x = d.floats(2, 3, 4)
        axis = d.integer(1, x.rank - 1)
        scale = d.constant(d.rng.uniform(0.5, 1.5, x.shape[axis:]).astype(np.float32))
        bias = d.constant(d.rng.normal(0, 1, x.shape[axis:]).astype(np.float32))
        return d.node(op, x, scale, *((bias,) if d.chance(0.7) else ()), axis=axis, epsilon=1e-2)
    x = d.floats(3, 4)
    if op == "LRN":
        return d.node(op, d.floats(4), size=d.choose((1, 3, 5)))
    channels = x.shape[1]
    if op == "InstanceNormalization" and x.size == x.shape[0] * channels:
        raise Rejected("one pixel, which is its own mean")
    numbers = [d.rng.uniform(0.5, 1.5, channels), d.rng.normal(0, 1, channels)]
    if op == "BatchNormalization":
        numbers += [d.rng.normal(0, 1, channels), d.rng.uniform(0.5, 1.5, channels)]
    return d.node(op, x, *(d.constant(n.astype(np.float32)) for n in numbers), epsilon=1e-2)


def softmax(d: Drawing) -> object:
    x = d.floats()
    axis = d.integer(-x.rank, x.rank - 1) if x.rank else 0
    return d.node(d.choose(("Softmax", "LogSoftmax")), x, axis=axis)


def reduction(d: Drawing) -> object:
    x = d.floats()
    count = d.integer(0, x.rank)
    axes = [int(a) for a in d.rng.permutation(x.rank)[:count]]
    axes = [a - x.rank if d.chance(0.3) else a for a in axes]
    given = () if not axes and d.chance(0.5) else (d.integers(*axes),)
    return d.node(d.choose(REDUCTIONS), x, *given, keepdims=d.integer(0, 1))


def any_value(d: Drawing, *ranks: int) -> Value:
    return d.pick(lambda v: not ranks or v.rank in ranks)


def reshape(d: Drawing) -> object:
    x = any_value(d)
    sizes, rest = [], x.size
    for _ in range(d.integer(0, 3)):
        size = d.choose([n for n in range(1, rest + 1) if rest % n == 0])
        sizes.append(size)
        rest //= size
    sizes.insert(d.integer(0, len(sizes)), -1 if d.chance(0.4) else rest)
    return d.node("Reshape", x, d.integers(*sizes))


def transpose(d: Drawing) -> object:
    x = any_value(d, 1, 2, 3, 4, 5, 6)
    return d.node("Transpose", x, perm=[int(a) for a in d.rng.permutation(x.rank)])


def rank_change(d: Drawing) -> object:
    x = any_value(d)
    if d.chance(0.3):
        return d.node("Flatten", x, axis=d.integer(0, x.rank))
    if 1 in x.shape and d.chance(0.5):
        return d.node(
            "Squeeze", x, d.integers(d.choose([i for i, n in enumerate(x.shape) if n == 1]))
        )
    return d.node("Unsqueeze", x, d.integers(d.integer(-x.rank - 1, x.rank)))


def concatenation(d: Drawing) -> object:
    x = any_value(d, 1, 2, 3, 4, 5)
    axis = d.integer(0, x.rank - 1)

    def joins(v: Value) -> bool:
        rest = v.shape[:axis] + v.shape[axis + 1 :]
        same = v.element == x.element and v.rank == x.rank
        return same and rest == x.shape[:axis] + x.shape[axis + 1 :]

    parts = [d.pick(joins) for _ in range(d.integer(1, 3))]
    return d.node("Concat", x, *parts, axis=axis - x.rank if d.chance(0.3) else axis)


def split(d: Drawing) -> object:
    x = any_value(d, 1, 2, 3, 4)
    axis = d.integer(0, x.rank - 1)
    if x.shape[axis] < 2:
        raise Rejected("nothing to split")
    first = d.integer(1, x.shape[axis] - 1)
    return d.node("Split", x, d.integers(first, x.shape[axis] - first), outputs=2, axis=axis)


def slicing(d: Drawing) -> object:
    x = any_value(d, 1, 2, 3, 4)
    axis = d.integer(0, x.rank - 1)
    size = x.shape[axis]
    start, end = d.integer(-size, size), d.integer(-size - 1, size + 2)
    step = d.choose((1, 1, 2, -1, -2))
    return d.node("Slice", x, *(d.integers(n) for n in (start, end, axis, step)))


def padding(d: Drawing) -> object:
    x = d.floats(1, 2, 3, 4)
    mode = d.choose(("constant", "edge", "reflect"))
    most = [2 if mode != "reflect" else min(2, size - 1) for size in x.shape]
    pads = [d.integer(0, m) for _ in range(2) for m in most]
    value = (d.constant(np.float32(d.choose((0.0, -1.5)))),) if mode == "constant" else ()
    return d.node("Pad", x, d.integers(*pads), *value, mode=mode)


def repetition(d: Drawing) -> object:
    x = any_value(d, 1, 2, 3, 4)
    if d.chance(0.5):
        return d.node("Tile", x, d.integers(*(d.integer(1, 2) for _ in x.shape)))
    shape = [d.integer(1, 3) if size == 1 else size for size in x.shape]
    lead = [d.integer(1, 2)] if d.chance(0.3) else []
    return d.node("Expand", x, d.integers(*lead, *shape))


def gathering(d: Drawing) -> object:
    x = any_value(d, 1, 2, 3, 4)
    axis = d.integer(0, x.rank - 1)
    size = x.shape[axis]
    shape = d.choose(((), (3,), (2, 2)))
    return d.node("Gather", x, d.constant(d.rng.integers(-size, size, shape)), axis=axis)


def picking(d: Drawing) -> object:
    """Operators whose results are indices, or are chosen by them."""
    x = d.floats(1, 2, 3, 4)
    axis = d.integer(0, x.rank - 1)
    size = x.shape[axis]
    op = d.choose(("ArgMax", "ArgMin", "TopK", "CumSum", "Gather"))
    if op == "TopK":
        largest = d.integer(0, 1)
        return d.node(op, x, d.integers(d.integer(1, size)), outputs=2, axis=axis, largest=largest)
    if op == "CumSum":
        flags = {"exclusive": d.integer(0, 1), "reverse": d.integer(0, 1)}
        return d.node(op, x, d.constant(np.int64(axis)), **flags)
    if op == "Gather":
        best = d.node("ArgMax", x, axis=axis, keepdims=0)
        return d.node("Gather", d.pick(lambda v: v.rank > 0 and v.shape[0] >= size), best, axis=0)
    last = d.integer(0, 1)
    return d.node(op, x, axis=axis, keepdims=d.integer(0, 1), select_last_index=last)


def resizing(d: Drawing) -> object:
    x = d.floats(4)
    scales = [1.0, 1.0, d.choose((0.5, 1.5, 2.0, 3.0)), d.choose((1.0, 2.0))]
    mode = d.choose(("nearest", "linear"))
    how = d.choose(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    rounding = (
        {"nearest_mode": d.choose(("floor", "round_prefer_floor"))} if mode == "nearest" else {}
    )
    factor = d.constant(np.array(scales, np.float32))
    return d.node(
        "Resize", x, None, factor, mode=mode, coordinate_transformation_mode=how, **rounding
    )


def blocks(d: Drawing) -> object:
    x = d.floats(4)
    if x.shape[1] % 4 == 0 and d.chance(0.6):
        return d.node("DepthToSpace", x, blocksize=2, mode=d.choose(("DCR", "CRD")))
    if any(size % 2 for size in x.shape[2:]):
        raise Rejected("odd sizes")
    return d.node("SpaceToDepth", x, blocksize=2)


def comparison(d: Drawing) -> object:
    x = d.floats()
    return d.node(d.choose(COMPARISONS), x, broadcastable(d, x))


def condition(d: Drawing) -> object:
    c = d.pick(lambda v: v.element == CONDITION)
    if d.chance(0.3):
        return d.node("Not", c)
    if d.chance(0.4):
        return d.node(d.choose(LOGICAL), c, broadcastable(d, c))
    x = d.pick(lambda v: v.element == FLOAT and fits(v.shape, c.shape))
    return d.node("Where", c, x, broadcastable(d, x))


def cast(d: Drawing) -> object:
    x = any_value(d)
    if x.element == FLOAT:
        x = d.node("Clip", x, d.constant(np.float32(-1000)), d.constant(np.float32(1000)))
    return d.node("Cast", x, to=d.choose((FLOAT, INTEGER, CONDITION)))


def whole_numbers(d: Drawing) -> object:
    """Arithmetic of int64."""
    x = d.pick(lambda v: v.element == INTEGER)
    if d.chance(0.3):
        return d.node(d.choose(("Neg", "Abs", "Sign")), x)
    y = broadcastable(d, x)
    op = d.choose(("Add", "Sub", "Mul", "Max", "Min", "Mod", "Div", "Equal", "Less", "Greater"))
    if op in ("Mod", "Div"):
        y = d.constant(np.int64(d.choose((1, 2, 3, 7))))
    return d.node(op, x, y)


def triangle(d: Drawing) -> object:
    return d.node("Trilu", any_value(d, 2, 3, 4), upper=d.integer(0, 1))


FAMILIES: tuple[tuple[float, Draw], ...] = (
    (4, convolution),
    (2, pool),
    (2, gemm),
    (3, matmul),
    (5, unary),
    (2, positive),
    (1, clip),
    (0.5, prelu),
    (4, binary),
    (1, divide),
    (1, variadic),
    (1.5, normalization),
    (1, softmax),
    (2, reduction),
    (2, reshape),
    (2, transpose),
    (1, rank_change),
    (2, concatenation),
    (1, split),
    (2, slicing),
    (1, padding),
    (1, repetition),
    (1, gathering),
    (1, picking),
    (0.7, resizing),
    (0.5, blocks),
    (1, comparison),
    (1, condition),
    (0.7, cast),
    (0.7, whole_numbers),
    (0.3, triangle),
)
"""How often each family is tried, and how it is drawn."""
