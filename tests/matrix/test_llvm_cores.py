"""Convolutions for different cores of one instruction set: other tiles, other prefetches."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.codegen.llvm.isa.costs import Core
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.isa.x86.levels import ICE_LAKE
from quantglow.codegen.llvm.kernels.conv.implicit_gemm import ConvKernel
from quantglow.codegen.llvm.targets import resolve, runs_here
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Conv
from quantglow.ir.program.program import Compute
from quantglow.ir.types import DType
from tests.generators.quantized_graphs.convolutions import (
    Case,
    cases,
    element,
    floats,
    integers,
    tensor,
)
from tests.matrix.harness import assert_agree, planned
from tests.support.effort import moderate

LEVEL = "avx512vnni"
pytestmark = pytest.mark.skipif(not runs_here(LEVEL), reason=f"this processor has no {LEVEL}")


def target_with(core: Core = ICE_LAKE) -> Target:
    return replace(resolve(LEVEL), core=core)


@pytest.mark.slow
@moderate
@given(case=st.one_of(cases(), cases(depthwise=True), cases(wide=True)))
def test_integers_are_those_of_the_interpreter(case: Case) -> None:
    assert_agree(*integers(case), target_with(), threads=1 + case.seed % 2)


@pytest.mark.slow
@moderate
@given(case=st.one_of(cases(), cases(depthwise=True)))
def test_floats_are_close_to_the_interpreter(case: Case) -> None:
    assert_agree(*floats(case), target_with(), threads=1 + case.seed % 2)


def heavy(
    height: int, width: int, channels: int, kernel: tuple[int, int], dilation: int = 1
) -> Case:
    """A convolution whose weights are larger than its image."""
    return Case(
        n=1,
        h=height,
        w=width,
        group=1,
        c_group=channels,
        o_group=390,
        kernel=kernel,
        strides=(1, 1),
        dilations=(dilation, dilation),
        pads=(dilation * (kernel[0] // 2), dilation * (kernel[1] // 2)) * 2,
        residual=kernel == (1, 1),
        float_result=False,
        zero_points=(-128, 9),
        dtypes=(DType.I8, DType.I8, DType.I8),
        bounds=(-math.inf, math.inf),
        seed=height + width + channels,
    )


def conv_kernel(graph: Graph, core: Core) -> ConvKernel:
    program, _ = planned(graph)
    (step,) = (s for s in program.instructions if isinstance(s, Compute) and isinstance(s.op, Conv))
    assert isinstance(step.op, Conv)
    return ConvKernel(step, step.op, target_with(core))


@pytest.mark.parametrize("core", [Core(), ICE_LAKE], ids=["default", "ice-lake"])
@pytest.mark.parametrize(
    ("height", "width", "kernel", "dilation"),
    [
        (7, 7, (3, 3), 1),
        (7, 7, (1, 1), 1),
        (7, 7, (3, 3), 2),
        (7, 14, (1, 3), 3),
        (1, 49, (1, 1), 1),
        (1, 200, (1, 1), 1),
    ],
)
@pytest.mark.parametrize("channels", [36, 64])
def test_heavy_weights_give_the_same_results(
    core: Core, height: int, width: int, kernel: tuple[int, int], dilation: int, channels: int
) -> None:
    case = heavy(height, width, channels, kernel, dilation)
    for graph, feeds in (integers(case), floats(case)):
        assert_agree(graph, feeds, target_with(core), threads=1 + channels % 3)


@pytest.mark.parametrize(("core", "evenly"), [(Core(), False), (ICE_LAKE, True)])
def test_weights_from_far_away_are_asked_for_as_the_core_wants(core: Core, evenly: bool) -> None:
    kernel = conv_kernel(integers(heavy(7, 7, 64, (3, 3)))[0], core)
    assert kernel.streams_weights
    assert kernel.asks_evenly == evenly
    assert "@llvm.prefetch" in kernel.text()


def test_shares_cover_the_next_panel() -> None:
    for width in (4, 30, 49, 300):
        kernel = conv_kernel(integers(heavy(1, width, 64, (1, 1)))[0], ICE_LAKE)
        asked = kernel.share_nbytes * kernel.geometry.runs.total_steps * kernel.shares
        assert kernel.shares <= kernel.pixel_tiles
        assert kernel.panel_nbytes <= asked


def test_rows_of_many_lengths_have_the_same_text() -> None:
    kernels = [conv_kernel(integers(heavy(1, w, 64, (1, 1)))[0], ICE_LAKE) for w in (60, 90, 120)]
    assert all(kernel.asks_evenly and kernel.is_counted for kernel in kernels)
    assert len({kernel.tile for kernel in kernels}) == 1
    assert len({kernel.text() for kernel in kernels}) == 1


def test_residuals_of_any_parameters_have_the_same_text() -> None:
    graph, _ = integers(heavy(7, 7, 64, (1, 1)))
    ((name, conv),) = graph.outputs
    assert isinstance(conv, Conv) and conv.residual is not None
    texts = set()
    for scale, zero_point in ((0.03, 7), (0.2, -128), (0.001, 0)):
        residual = tensor("r", conv.type.shape, element(DType.I8, scale, zero_point))
        changed = replace(conv, residual=residual)
        actual = Graph((graph.inputs[0], residual), ((name, changed),))
        texts.add(conv_kernel(actual, ICE_LAKE).text())
    assert len(texts) == 1
