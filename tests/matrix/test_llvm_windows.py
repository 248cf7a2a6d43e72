"""Kernels of Cortex-M55, in plain LLVM IR: windows of one channel, and rows of a pixel."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.backends.llvm.kernels.conv.row_products import RowsConvKernel
from quantglow.backends.llvm.kernels.depthwise.window_kernel import WindowDepthwise
from quantglow.instr.program import Compute
from quantglow.ops import Conv
from quantglow.types import DType
from tests.generators.quantized_graphs.convolutions import Case, cases, integers
from tests.matrix.harness import assert_agree, planned
from tests.matrix.plain_ir.translation import plain
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


def conv_step(case: Case) -> Compute:
    """The instruction of a case."""
    program, _ = planned(integers(case)[0], unsigned=False)
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
    ],
)
def test_windows_of_a_channel_equal_the_interpreter(case: Case) -> None:
    step = conv_step(case)
    assert isinstance(step.op, Conv)
    assert WindowDepthwise(step, step.op, plain(LEVEL)).applies
    graph, feeds = integers(case)
    assert_agree(graph, feeds, plain(LEVEL))


@pytest.mark.parametrize(
    ("case", "level"),
    [
        (convolution(9, 9, 8, (5, 5)), LEVEL),
        (replace(convolution(9, 9, 8, (3, 3)), dtypes=(DType.I16,) * 3), LEVEL),
        (convolution(9, 9, 8, (3, 3)), "cortex-m4"),
    ],
)
def test_other_windows_have_other_kernels(case: Case, level: str) -> None:
    step = conv_step(case)
    assert isinstance(step.op, Conv)
    assert not WindowDepthwise(step, step.op, plain(level)).applies


def test_tiles_lie_along_the_axis_that_needs_fewer() -> None:
    for case, along in ((convolution(27, 7, 8, (3, 3)), 25), (convolution(7, 27, 8, (3, 3)), 25)):
        step = conv_step(case)
        assert isinstance(step.op, Conv)
        assert WindowDepthwise(step, step.op, plain(LEVEL)).axes[0].results == along


@moderate
@given(case=cases(depthwise=True))
def test_depthwise_equals_the_interpreter(case: Case) -> None:
    graph, feeds = integers(case)
    assert_agree(graph, feeds, plain(LEVEL), threads=1 + case.seed % 2)


@pytest.mark.parametrize(
    "case",
    [
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
    ],
)
def test_rows_of_a_pixel_equal_the_interpreter(case: Case) -> None:
    step = conv_step(case)
    assert isinstance(step.op, Conv)
    assert RowsConvKernel(step, step.op, plain(LEVEL)).applies
    graph, feeds = integers(case)
    assert_agree(graph, feeds, plain(LEVEL))


@moderate
@given(case=st.one_of(cases(), cases(wide=True)))
def test_convolutions_equal_the_interpreter(case: Case) -> None:
    graph, feeds = integers(case)
    assert_agree(graph, feeds, plain(LEVEL), threads=1 + case.seed % 2)
