"""Packed int8 weights take a byte each on every level."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quantglow.codegen.llvm.isa.costs import Core
from quantglow.codegen.llvm.isa.dot import STEP_NBYTES, DotProduct
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.targets import LEVELS, level_target
from quantglow.export.bundle.constants import Placement, weight_blocks
from quantglow.export.bundle.exporter import emit
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Constant, Conv, Input
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from tests.support.effort import expensive
from tests.support.pinned import pinned

LEAST = -127
"""The least weight that quantglow's own quantization makes."""
PER_CHANNEL_NBYTES = 8
"""Bias and multiplier."""

BORDERS_NBYTES = 1024
"""Tables that convert inputs and outputs, slack, and what aligns constants."""


def convolution(c: int, o: int, kernel: int, least: int = LEAST) -> Graph:
    """A dense convolution of random weights, ``least`` among them."""
    rng = np.random.default_rng(0)
    x = Input(name="x", tensor=TensorType(DType.I8, (1, 7, 9, c), QuantParams.per_tensor(0.05, 3)))
    values = rng.integers(LEAST, 128, (kernel, kernel, c, o)).astype(np.int8)
    values[0, 0, 0, 0] = least
    scales = np.full(o, 1e-3, np.float32)
    w = Constant(
        name="w", value=values, element=ElementType(DType.I8, QuantParams.symmetric(scales, 3))
    )
    b = Constant(name="b", value=np.zeros(o, np.int32))
    out = ElementType(DType.I8, QuantParams.per_tensor(0.4, 3))
    return Graph((x,), (("y", Conv(name="y", x=x, w=w, b=b, out=out)),))


def stored_nbytes(graph: Graph, level: str) -> int:
    """Bytes of the weights of a graph's bundle."""
    return weight_blocks([emit(graph, level)], Placement.OBJECT)[0].nbytes


def padded_nbytes(c: int, o: int, kernel: int, target: Target) -> int:
    """Weights, a byte each, and constants of channels, padded to whole vectors and steps."""
    isa = target.isa
    row_nbytes = isa.vector_nbytes if isa.tiles or isa.row_products else STEP_NBYTES
    lanes = target.vector_nbytes // 4
    channels = -(-o // lanes) * lanes
    row = -(-kernel * c // row_nbytes) * row_nbytes
    return channels * (kernel * row + PER_CHANNEL_NBYTES)


def dots(target: Target) -> list[DotProduct]:
    """The dot products of int8 activations and weights."""
    isa = target.isa
    stored = DType.U8 if isa.unsigned_activations else DType.I8
    products = (
        isa.dot_product(stored, Core()),
        isa.symmetric_product(stored, Core()),
        isa.pair_product(Core()),
    )
    return [dot for dot in products if dot is not None]


@pytest.mark.parametrize("level", LEVELS)
def test_a_step_has_as_many_bytes_as_weights(level: str) -> None:
    target = level_target(level)
    for dot in dots(target):
        quads = np.resize(np.arange(LEAST, 128, dtype=np.int8), (dot.lanes, STEP_NBYTES))
        assert dot.pack(quads).nbytes == dot.weight_nbytes == quads.nbytes


@pytest.mark.parametrize("level", LEVELS)
@expensive
@given(c=st.integers(16, 200), o=st.integers(16, 200), kernel=st.sampled_from([1, 3]))
@example(c=64, o=128, kernel=3)
@example(c=128, o=256, kernel=1)
def test_a_bundle_has_a_byte_for_each_weight(level: str, c: int, o: int, kernel: int) -> None:
    target = level_target(level)
    most = 1.1 * padded_nbytes(c, o, kernel, target) + BORDERS_NBYTES
    assert stored_nbytes(convolution(c, o, kernel), level) <= most


@pytest.mark.parametrize("level", LEVELS)
def test_weights_of_minus_128_take_a_byte_each(level: str) -> None:
    symmetric, others = (convolution(96, 64, 3, least) for least in (LEAST, -128))
    assert stored_nbytes(others, level) <= stored_nbytes(symmetric, level)


@pytest.mark.parametrize("level", [n for n in LEVELS if level_target(n).vector_nbytes <= 32])
def test_depthwise_weights_are_as_small_as_those_of_byte_products(level: str) -> None:
    """Wider vectors have more channels to fill."""
    graph = pinned("depthwise")
    assert stored_nbytes(graph, level) <= 1.2 * stored_nbytes(graph, "dotprod")
