"""Every kernel but convolution: primitive × element type × target, against the reference.

Shapes lie around vector widths; operands are views of any strides; results lie inside others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import (
    LRN,
    Add,
    AveragePool,
    Dequantize,
    Div,
    Elementwise,
    Expand,
    Gelu,
    LayerNormalization,
    LogSoftmax,
    MatMul,
    Max,
    MaxPool,
    Min,
    Mul,
    Pad,
    PRelu,
    Quantize,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceSum,
    Rescale,
    Resize,
    Sigmoid,
    Softmax,
    Sub,
    Table,
    Transpose,
    Where,
)
from quantglow.ir.ops.expression import arg, call, const
from quantglow.ir.types import DType, ElementType, QuantParams, f32
from quantglow.support.errors import TypeRuleError
from tests.generators.quantized_graphs.drawing import CHANNELS, Drawing
from tests.matrix.harness import assert_targets_agree, guarded_feeds, in_turn
from tests.support.effort import expensive

Case = Callable[[Drawing], tuple[Node, ...]]
INTEGERS = (DType.I8, DType.U8)
WIDE = (*INTEGERS, DType.I16)
ALL = (DType.F32, *INTEGERS)
ALL_WIDE = (DType.F32, *WIDE)


def image(d: Drawing, largest: int = 9) -> tuple[int, int, int, int]:
    return (d.number(1, 2), d.number(1, largest), d.number(1, largest), d.pick(*CHANNELS))


def out(d: Drawing):
    """The ``out`` of a quantized operator, of its operand's width or the other; None for float."""
    if d.dtype.is_float:
        return None
    narrow = d.dtype if d.dtype is not DType.I16 else d.pick(*INTEGERS)
    return d.element(d.pick(d.dtype, narrow, DType.I16))


def binary(d: Drawing) -> tuple[Node, ...]:
    shape = image(d)
    other = tuple(d.pick(size, size, 1) for size in shape)
    op = d.pick(Add, Sub, Mul, Max, Min)
    x, y = d.operand(shape), d.operand(other)
    bounds = d.pick((-math.inf, math.inf), (0.0, 6.0))
    return (d.make(op, x=x, y=y, low=bounds[0], high=bounds[1], out=out(d)),)


def with_constant(d: Drawing) -> tuple[Node, ...]:
    shape = image(d)
    value = np.linspace(-2, 2, shape[-1], dtype=np.float32)
    constant = d.make(Constant, value=value)
    op = d.pick(Add, Mul)
    return (d.make(op, x=constant, y=d.operand(shape), out=out(d)),)


def prelu(d: Drawing) -> tuple[Node, ...]:
    x = d.operand(image(d))
    slope = d.make(Constant, value=np.full(x.type.shape[-1:], -0.3, np.float32))
    return (d.make(PRelu, x=x, slope=slope, out=out(d)),)


def functions(d: Drawing) -> tuple[Node, ...]:
    x = d.operand(image(d))
    y = d.operand(x.type.shape)
    negative = call("lt", arg(0), const(0))
    condition = d.make(Elementwise, args=(y,), expression=negative, out=ElementType(DType.BOOL))
    return (
        d.make(Gelu, x=d.make(Sigmoid, x=x)),
        d.make(Div, x=x, y=y),
        d.make(Where, condition=condition, x=x, y=y),
        d.make(LogSoftmax, x=x),
        d.make(LayerNormalization, x=x),
        d.make(LRN, x=x, size=d.number(1, 5), alpha=0.5),
    )


def storage(d: Drawing) -> tuple[Node, ...]:
    """Quantize, and its inverse in a wider type."""
    x = d.operand(image(d), DType.F32)
    wide = d.make(Quantize, x=x, out=d.element(DType.I16))
    narrow = d.make(Rescale, x=wide, out=d.element())
    return (
        narrow,
        d.make(Dequantize, x=narrow),
        d.make(Quantize, x=x, out=d.element()),
    )


def planes(d: Drawing) -> tuple[Node, ...]:
    """Images with few channels, from NCHW into the inside of a padded NHWC tensor."""
    n, h, w, c = d.number(1, 2), d.number(1, 5), d.number(1, 70), d.number(1, 5)
    x = d.input((n, c, h, w), d.element(DType.F32))
    nhwc = d.make(Transpose, x=x, perm=(0, 2, 3, 1))
    quantized = d.make(Quantize, x=nhwc, out=d.element())
    recorded = []
    for node in (nhwc, quantized):
        widths = (0, 1, 2, 0), (0, 2, 1, 0)
        recorded.append(d.make(Pad, x=node, before=widths[0], after=widths[1]))
    return tuple(recorded)


def moves(d: Drawing) -> tuple[Node, ...]:
    """Transposes, slices and broadcasts that no view of the result can express."""
    shape = image(d, largest=20)
    x = d.operand(shape)
    wider = (d.number(2, 3), *shape)
    wide = d.make(Expand, x=x, shape=wider)
    copied = d.make(Elementwise, args=(wide,), expression=arg(0), out=x.type.element)
    perm = tuple(d.draw(st.permutations(range(4))))
    return d.make(Transpose, x=x, perm=perm), d.operand(shape), copied


def table(d: Drawing) -> tuple[Node, ...]:
    x = d.operand(image(d))
    element = d.element(d.pick(DType.I8, DType.U8, DType.I16))
    low, high = element.dtype.limits
    count = 2 ** (8 * x.type.dtype.nbytes)
    values = np.random.default_rng(d.number(0, 99)).integers(low, high, count)
    wide = DType.I16 in (element.dtype, x.type.dtype)
    if element.dtype is not x.type.dtype and not wide and d.pick(0, 1):
        values = np.arange(low, high + 1)
    entries = d.make(Constant, value=values.astype(element.dtype.numpy), element=element)
    return (d.make(Table, x=x, table=entries, out=element),)


def window(d: Drawing) -> dict[str, object]:
    kernel = (d.number(1, 4), d.number(1, 4))
    if d.number(0, 5) == 0:
        kernel = (8, 9)
    return {
        "kernel": kernel,
        "strides": (d.number(1, 3), d.number(1, 3)),
        "pads": tuple(d.number(0, k // 2) for k in (*kernel, *kernel)),
        "dilations": d.pick((1, 1), (1, 1), (2, 1), (1, 3)),
        "ceil_mode": d.pick(False, True),
    }


def max_pool(d: Drawing) -> tuple[Node, ...]:
    return (d.make(MaxPool, x=d.operand(image(d, largest=12)), **window(d)),)


def average_pool(d: Drawing) -> tuple[Node, ...]:
    x, counted = d.operand(image(d, largest=12)), d.pick(False, True)
    pool = d.make(AveragePool, x=x, **window(d), count_include_pad=counted, out=out(d))
    return (pool,)


def reductions(d: Drawing) -> tuple[Node, ...]:
    rank = d.number(1, 4)
    shape = (*(d.number(1, 6) for _ in range(rank - 1)), d.pick(*CHANNELS))
    axes = tuple(sorted(d.draw(st.sets(st.integers(0, rank - 1), min_size=1))))
    x = d.operand(shape)
    built: list[Node] = [d.make(op, x=x, axes=axes) for op in (ReduceMax, ReduceMin)]
    built.append(d.make(ReduceMean, x=x, axes=axes, keepdims=False, out=out(d)))
    if d.dtype.is_float:
        built.append(d.make(ReduceSum, x=x, axes=axes))
    return tuple(built)


def softmax(d: Drawing) -> tuple[Node, ...]:
    x = d.operand((d.number(1, 3), d.number(1, 3), d.pick(*CHANNELS)))
    return (d.make(Softmax, x=x, out=out(d)),)


def normalization(d: Drawing) -> tuple[Node, ...]:
    x = d.operand((d.number(1, 3), d.number(1, 3), d.pick(*CHANNELS)))
    return (d.make(LayerNormalization, x=x, out=out(d)),)


COORDINATES = (
    *("half_pixel", "pytorch_half_pixel", "align_corners"),
    *("asymmetric", "half_pixel_symmetric"),
)


def resize(d: Drawing) -> tuple[Node, ...]:
    x = d.operand(image(d, largest=6))
    sizes = (d.number(1, 11), d.number(1, 11))
    scales = (sizes[0] / x.type.shape[1], d.pick(sizes[1] / x.type.shape[2], 1e-38, 1e30))
    mode, coordinates = d.pick("nearest", "linear"), d.pick(*COORDINATES)
    rounding = d.pick("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    chosen = {"mode": mode, "coordinates": coordinates, "rounding": rounding}
    return (d.make(Resize, x=x, sizes=sizes, scales=scales, **chosen),)


def matmul(d: Drawing) -> tuple[Node, ...]:
    m, k, n = d.number(1, 19), d.pick(d.number(1, 40), 66, 131), d.pick(*CHANNELS)
    batch = d.number(1, 3)
    other = d.dtype if d.dtype.is_float else d.pick(*WIDE)
    x, y = d.operand((batch, m, k)), d.operand((d.pick(1, batch), k, n), other)
    if d.pick(False, True):
        turned = d.operand((y.type.shape[0], n, k), other)
        y = d.make(Transpose, x=turned, perm=(0, 2, 1))
    element = d.pick(out(d), None)
    return (d.make(MatMul, x=x, y=y, out=element),)


CASES: dict[Case, tuple[DType, ...]] = {
    binary: ALL_WIDE,
    with_constant: ALL_WIDE,
    prelu: ALL_WIDE,
    functions: (DType.F32,),
    storage: WIDE,
    planes: WIDE,
    moves: ALL_WIDE,
    table: WIDE,
    max_pool: ALL_WIDE,
    average_pool: ALL_WIDE,
    reductions: ALL_WIDE,
    softmax: ALL,
    normalization: ALL_WIDE,
    resize: ALL_WIDE,
    matmul: ALL_WIDE,
}


def parameters() -> Iterator[Any]:
    """Every case with every type; slow but one type for each case, another one for the next."""
    for number, (case, types) in enumerate(CASES.items()):
        for dtype in types:
            marks = () if dtype is types[number % len(types)] else pytest.mark.slow
            yield pytest.param(case, dtype, id=f"{case.__name__}-{dtype}", marks=marks)


@pytest.mark.parametrize(("case", "dtype"), [*parameters()])
def test_targets_compute_what_the_reference_computes(case: Case, dtype: DType) -> None:
    @settings(expensive, database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        d = Drawing(data.draw, dtype)
        try:
            graph = d.graph(*case(d))
        except TypeRuleError:
            assume(False)
        unsigned, seed = data.draw(st.booleans()), d.number(0, 999)
        feeds = guarded_feeds(graph, seed)
        assert_targets_agree(graph, feeds, targets=in_turn(seed), unsigned=unsigned)

    check()


def test_quantize_saturates_infinities_and_takes_nan_for_the_lowest() -> None:
    x = Input(name="x", tensor=f32(1, 70))
    element = ElementType(DType.I8, QuantParams.per_tensor(0.5, -3))
    graph = Graph((x,), (("out", Quantize(name="q", x=x, out=element)),))
    values = [np.nan, np.inf, -np.inf, 3e38, -3e38, 0.25, 0.75, -0.25, 1e9]
    assert_targets_agree(graph, {"x": np.resize(np.float32(values), (1, 70))})
