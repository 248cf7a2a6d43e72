"""Kernels of Cortex-M in plain LLVM IR: windows of one channel and rows of a pixel on Cortex-M55,
two channels in one word on Cortex-M4."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.codegen.llvm.kernels.conv.row_products import RowsConvKernel
from quantglow.codegen.llvm.kernels.conv.streamed import MergedConvKernel
from quantglow.codegen.llvm.kernels.depthwise.window_kernel import WindowDepthwise
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Constant, Conv
from quantglow.ir.program.program import Compute
from quantglow.ir.types import DType, ElementType, QuantParams
from tests.generators.quantized_graphs.convolutions import Case, cases, integers
from tests.matrix.harness import assert_agree, planned
from tests.matrix.plain_ir.translation import plain
from tests.support.combinations import mark_slow
from tests.support.effort import moderate

LEVEL = "cortex-m55"
ANY = (-math.inf, math.inf)


def convolution(
    height: int,
    width: int,
    channels: int,
    kernel: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
) -> Case:
    """A depthwise convolution without padding of two images."""
    same = (DType.I8,) * 3
    none, zero_points = (0,) * 4, (-128, 9)
    sizes = (2, height, width, channels, 1, 1, kernel, strides, dilations, none)
    return Case(*sizes, False, False, zero_points, same, ANY, 1)


def dense(height: int, width: int, c: int, o: int, kernel: tuple[int, int], group: int = 1) -> Case:
    """A dense convolution without padding."""
    return replace(convolution(height, width, group, kernel), n=1, c_group=c, o_group=o)


def conv_step(graph: Graph) -> Compute:
    """The instruction of a graph of one convolution."""
    program, _ = planned(graph, unsigned=False)
    steps = (s for s in program.instructions if isinstance(getattr(s, "op", None), Conv))
    step = next(steps)
    assert isinstance(step, Compute)
    return step


@pytest.mark.parametrize(
    "case",
    [
        convolution(6, 10, 16, (3, 3)),
        convolution(6, 7, 5, (3, 3)),
        convolution(27, 7, 20, (3, 3)),
        convolution(4, 5, 33, (3, 3)),
        convolution(9, 11, 17, (3, 3), (2, 2)),
        convolution(9, 12, 8, (2, 4), (1, 3)),
        convolution(3, 13, 4, (1, 2)),
        convolution(12, 12, 3, (3, 3), (1, 1), (2, 3)),
        convolution(11, 2, 6, (4, 1), (2, 1)),
        convolution(9, 12, 18, (5, 5)),
        convolution(12, 7, 3, (5, 3), (2, 1)),
        convolution(6, 15, 9, (1, 7), (1, 2)),
    ],
)
def test_windows_of_a_channel_equal_the_interpreter(case: Case) -> None:
    step = conv_step(integers(case)[0])
    assert isinstance(step.op, Conv)
    assert WindowDepthwise(step, step.op, plain(LEVEL)).applies
    graph, feeds = integers(case)
    assert_agree(graph, feeds, plain(LEVEL))


@pytest.mark.parametrize(
    ("case", "level"),
    [
        (convolution(9, 9, 8, (7, 7)), LEVEL),
        (replace(convolution(9, 9, 8, (3, 3)), dtypes=(DType.I16,) * 3), LEVEL),
        (convolution(9, 9, 8, (3, 3)), "cortex-m4"),
        (replace(convolution(9, 9, 8, (3, 3)), residual=True), LEVEL),
    ],
)
def test_other_windows_have_other_kernels(case: Case, level: str) -> None:
    step = conv_step(integers(case)[0])
    assert isinstance(step.op, Conv)
    assert not WindowDepthwise(step, step.op, plain(level)).applies


def test_tiles_lie_along_the_axis_that_needs_fewer() -> None:
    for case, along in ((convolution(27, 7, 8, (3, 3)), 25), (convolution(7, 27, 8, (3, 3)), 25)):
        step = conv_step(integers(case)[0])
        assert isinstance(step.op, Conv)
        assert WindowDepthwise(step, step.op, plain(LEVEL)).axes[0].results == along


@pytest.mark.slow
@pytest.mark.parametrize("level", mark_slow(["cortex-m0plus", "cortex-m4", LEVEL], {LEVEL}))
@moderate
@given(case=cases(depthwise=True))
def test_depthwise_equals_the_interpreter(level: str, case: Case) -> None:
    graph, feeds = integers(case)
    assert_agree(graph, feeds, plain(level), threads=1 + case.seed % 2)


DENSE = [
    dense(3, 4, 8, 16, (1, 1)),
    dense(3, 4, 16, 9, (1, 1)),
    dense(2, 3, 70, 6, (1, 1)),
    dense(1, 2, 200, 30, (1, 1)),
    dense(5, 6, 3, 8, (3, 3)),
    dense(12, 4, 1, 7, (10, 4)),
    dense(5, 5, 40, 5, (3, 3)),
    dense(4, 4, 9, 6, (2, 2), group=3),
    replace(dense(3, 4, 33, 10, (1, 1)), residual=True),
    replace(dense(2, 2, 64, 66, (1, 1)), residual=True),
    replace(dense(3, 3, 20, 10, (1, 1)), float_result=True),
    replace(dense(7, 8, 5, 6, (3, 3)), strides=(2, 2), dilations=(1, 2), n=2),
]


@pytest.mark.parametrize("case", DENSE)
@pytest.mark.parametrize(
    ("kernel", "level"), [(RowsConvKernel, LEVEL), (MergedConvKernel, "cortex-m4")]
)
def test_streams_of_constants_give_the_interpreters_integers(
    kernel: type[RowsConvKernel | MergedConvKernel], level: str, case: Case
) -> None:
    graph, feeds = integers(case)
    step = conv_step(graph)
    assert isinstance(step.op, Conv)
    assert kernel(step, step.op, plain(level)).applies
    assert_agree(graph, feeds, plain(level))


@pytest.mark.slow_variants
@pytest.mark.parametrize("level", [LEVEL, "cortex-m4"])
@moderate
@given(case=st.one_of(cases(), cases(wide=True)))
def test_convolutions_equal_the_interpreter(level: str, case: Case) -> None:
    graph, feeds = integers(case)
    assert_agree(graph, feeds, plain(level), threads=1 + case.seed % 2)


def with_values(graph: Graph, **values: np.ndarray) -> Graph:
    """A graph of one convolution with other weights, their scales or another bias."""
    ((name, node),) = graph.outputs
    assert isinstance(node, Conv) and isinstance(node.w, Constant) and isinstance(node.b, Constant)
    w = replace(node.w, value=values.get("w", node.w.value).astype(np.int8))
    if "scales" in values:
        scales = values["scales"].astype(np.float32)
        w = replace(w, element=ElementType(DType.I8, QuantParams.symmetric(scales, 3)))
    b = replace(node.b, value=values.get("b", node.b.value).astype(np.int32))
    return replace(graph, outputs=((name, replace(node, w=w, b=b)),))


@pytest.mark.parametrize("channels", [3, 4, 9])
@pytest.mark.parametrize("bias", [5000, 2**23, 2**31 - 2**22])
def test_words_of_two_channels_take_any_bias(bias: int, channels: int) -> None:
    """Only products are multiplied by 256: a bias of more than 23 bits stays exact."""
    graph, feeds = integers(dense(2, 3, 40, channels, (1, 1)))
    signs = np.where(np.arange(channels) % 3, 1, -1)
    graph = with_values(graph, b=bias * signs, scales=np.full(channels, 100 / bias))
    step = conv_step(graph)
    assert isinstance(step.op, Conv)
    assert MergedConvKernel(step, step.op, plain("cortex-m4")).applies
    assert_agree(graph, feeds, plain("cortex-m4"))


def test_words_of_two_channels_need_sums_of_24_bits() -> None:
    """Channels are apart where products alone may exceed them, or a weight is -128."""
    for depth, weight, merged in ((512, 127, True), (520, 127, False), (4, -128, False)):
        graph, feeds = integers(dense(1, 2, depth, 4, (1, 1)))
        graph = with_values(graph, w=np.full((1, 1, depth, 4), weight))
        step = conv_step(graph)
        assert isinstance(step.op, Conv)
        assert MergedConvKernel(step, step.op, plain("cortex-m4")).applies == merged
        assert_agree(graph, feeds, plain("cortex-m4"))
