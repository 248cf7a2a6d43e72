"""Quantized results of element-wise kernels: rows that share factors, planes of pixels, and values
that no integer holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantglow.codegen.llvm.kernels.elementwise.elementwise import value_range
from quantglow.codegen.llvm.kernels.elementwise.row_values import row_parts
from quantglow.codegen.llvm.kernels.vector.loops import LoopAxis
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Add, Dequantize, Elementwise, Mul, Quantize, Transpose
from quantglow.ir.ops.expression import arg, call, const, iconst, parse_expression
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType, f32
from quantglow.support.arrays import Array
from tests.generators.quantized_graphs.drawing import Drawing
from tests.matrix.harness import assert_targets_agree, guarded_feeds, in_turn
from tests.support.effort import expensive, moderate

SPECIAL = (np.nan, np.inf, -np.inf, 3e38, -3e38, 2.0**31, -(2.0**31), 1e9, -1e9, 0.5, -0.5, -0.0)
DIVISORS = (1.0, 0.5, 0.0117, 2.0**-59, 2.0**-70, 3e20)


@settings(expensive, database=None)
@given(st.data())
def test_rows_of_channels_share_their_factors(data: st.DataObject) -> None:
    d = Drawing(data.draw, data.draw(st.sampled_from((DType.I8, DType.U8))))
    channels = d.pick(1, 3, 5, 8, 12, 16, 24, 40, 63, 64, 65, 88, 200)
    shape = (d.pick(1, 1, 2), d.number(1, 6), d.pick(1, 2, 8, 12, 31), channels)
    x = d.operand(shape)
    low, high = d.pick((-np.inf, np.inf), (0.0, 6.0))
    scale = d.operand((d.pick(1, shape[0]), 1, 1, channels))
    gated = d.make(Mul, x=x, y=scale, low=low, high=high, out=d.element())
    bias = d.make(Constant, value=np.linspace(-9, 9, channels, dtype=np.float32))
    moved = d.make(Add, x=gated, y=bias, out=d.element())
    scaled = d.make(Mul, x=d.make(Dequantize, x=x), y=bias)
    graph = d.graph(gated, moved, scaled)
    seed = d.number(0, 999)
    feeds, unsigned = guarded_feeds(graph, seed), d.pick(True, False)
    assert_targets_agree(graph, feeds, targets=in_turn(seed), unsigned=unsigned)


@pytest.mark.parametrize("channels", [3, 24, 65])
def test_a_condition_of_each_channel_is_read_in_every_row(channels: int) -> None:
    keep = Input(name="keep", tensor=TensorType(DType.BOOL, (channels,)))
    x = Input(name="x", tensor=f32(1, 4, 12, channels))
    factor = Input(name="factor", tensor=TensorType(DType.I8, (channels,)))
    product = call("mul", arg(1), call("float", call("isub", arg(2), iconst(3))))
    value = call("select", arg(0), product, arg(1))
    node = Elementwise(
        name="y", args=(keep, x, factor), expression=value, out=ElementType(DType.F32)
    )
    rng = np.random.default_rng(channels)
    feeds = {
        "keep": np.arange(channels) % 3 > 0,
        "x": rng.normal(size=x.type.shape).astype(np.float32),
        "factor": rng.integers(-128, 127, channels, np.int8, endpoint=True),
    }
    assert_targets_agree(Graph((keep, x, factor), (("y", node),)), feeds)


@settings(moderate, database=None)
@given(st.data())
def test_pixels_of_planes_are_quantized(data: st.DataObject) -> None:
    d = Drawing(data.draw, DType.I8)
    shape = (1, d.pick(2, 3, 4), d.number(1, 3), d.pick(1, 15, 64, 100, 128, 150, 192, 203))
    x = d.input(shape, ElementType(DType.F32))
    pixels: Node = d.make(Transpose, x=x, perm=(0, 2, 3, 1))
    if d.pick(True, False):
        step = d.make(Constant, value=np.float32([0.3, 2.0, 1.0, 7.0][: shape[1]]))
        pixels = d.make(Mul, x=pixels, y=step)
    params = QuantParams.per_tensor(d.pick(*DIVISORS), d.pick(-128, -3, 0, 127))
    graph = d.graph(d.make(Quantize, x=pixels, out=ElementType(DType.I8, params)))
    seed = d.number(0, 999)
    feeds = {**guarded_feeds(graph, seed), x.name: special_values(shape, params.scale, seed)}
    assert_targets_agree(graph, feeds, targets=in_turn(seed), unsigned=d.pick(True, False))


@settings(expensive, database=None)
@given(st.sampled_from(DIVISORS), st.sampled_from((-128, -3, 127)), st.integers(0, 999))
def test_values_beyond_the_integers_saturate(scale: float, zero_point: int, seed: int) -> None:
    x = Input(name="x", tensor=f32(3, 150))
    element = ElementType(DType.I8, QuantParams.per_tensor(scale, zero_point))
    graph = Graph((x,), (("out", Quantize(name="q", x=x, out=element)),))
    for unsigned in (False, True):
        feeds = {"x": special_values((3, 150), scale, seed)}
        assert_targets_agree(graph, feeds, targets=in_turn(seed), unsigned=unsigned)


def special_values(shape: tuple[int, ...], scale: float, seed: int) -> Array:
    """Steps of any magnitude, halves and non-finite numbers among them, times the scale."""
    rng = np.random.default_rng(seed)
    steps = np.rint(rng.normal(size=shape) * 10.0 ** rng.integers(0, 5, shape)) / 2
    steps = np.where(rng.random(shape) < 0.2, rng.choice(SPECIAL, shape), steps)
    with np.errstate(over="ignore"):
        return (steps * scale).astype(np.float32)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("float(isub($0, 3i))", (-3, 252)),
        ("mul(float($0), float(isub($1, 1i)))", (-255 * 129, 255 * 126)),
        ("max(float($1), 0.0)", (0, 127)),
        ("int(fmin(fmax(rint($2), -5.0), 7.0))", (-5, 7)),
        ("mul($2, 0.0)", None),
        ("mul(float($0), 1e8)", None),
        ("div(float($0), float($1))", None),
    ],
)
def test_ranges_follow_from_the_types(text: str, expected: tuple[float, float] | None) -> None:
    assert value_range(parse_expression(text), (DType.U8, DType.I8, DType.F32)) == expected


def test_rows_are_joined_until_they_fill_vectors() -> None:
    axes = (LoopAxis(16, (24, 24, 0)), LoopAxis(24, (1, 1, 1)))
    factor = call("float", arg(1))
    kept = row_parts(call("mul", call("float", arg(0)), factor), axes, (DType.U8, DType.U8), 64)
    assert (kept.parts, kept.repeats) == ((factor,), 8)
    assert kept.axes == (LoopAxis(2, (192, 192, 0, 0)), LoopAxis(192, (1, 1, 1, 4)))
    assert kept.expression == call("mul", call("float", arg(0)), arg(2))


def test_rows_with_gaps_are_not_joined() -> None:
    axes = (LoopAxis(16, (32, 24, 0)), LoopAxis(24, (1, 1, 4)))
    kept = row_parts(call("mul", arg(0), arg(1)), axes, (DType.F32, DType.F32), 64)
    assert (kept.parts, kept.axes) == ((), axes)


def test_few_rows_keep_nothing() -> None:
    axes = (LoopAxis(2, (24, 24, 0)), LoopAxis(24, (1, 1, 4)))
    expression = call("mul", arg(0), call("add", arg(1), const(1)))
    assert not row_parts(expression, axes, (DType.F32, DType.F32), 64).parts
