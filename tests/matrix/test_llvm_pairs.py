"""Convolutions that sum some steps, all or none in 16 bits, bit for bit on every level."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.codegen.llvm.kernels import emit
from quantglow.codegen.llvm.targets import level_target
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Constant, Conv, Input
from quantglow.ir.program.program import Compute
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from tests.matrix.harness import TARGETS, assert_agree, planned
from tests.support.combinations import mark_slow
from tests.support.effort import moderate

PAIRS = "pmadd.ub.sw"


def convolution(
    c: int,
    o: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    wide_share: float,
    seed: int,
    group: int = 1,
    least: int = -127,
) -> tuple[Graph, dict[str, np.ndarray]]:
    """Weights at the limits of 16-bit sums; in ``wide_share`` of the input channels beyond them:
    ``least`` and 127.

    Every byte of the image is 0 or 255.
    """
    rng = np.random.default_rng(seed)
    x_type = TensorType(DType.I8, (1, *size, c * group), QuantParams.per_tensor(0.05, -7))
    x = Input(name="x", tensor=x_type)
    o *= group
    values = rng.choice([-64, 64], (*kernel, c, o))
    wide = rng.random(c) < wide_share
    values[:, :, wide] = rng.choice([least, 127], (*kernel, int(wide.sum()), o))
    scales = rng.uniform(1e-5, 1e-3, o).astype(np.float32)
    w = Constant(
        name="w",
        value=values.astype(np.int8),
        element=ElementType(DType.I8, QuantParams.symmetric(scales, 3)),
    )
    b = Constant(name="b", value=rng.integers(-5000, 5000, o).astype(np.int32))
    out = ElementType(DType.I8, QuantParams.per_tensor(0.4, 3))
    conv = Conv(name="y", x=x, w=w, b=b, out=out, group=group)
    feeds = {"x": rng.choice([-128, 127], x_type.shape).astype(np.int8)}
    return Graph((x,), (("y", conv),)), feeds


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", mark_slow(TARGETS, TARGETS[::2]))
@moderate
@given(
    c=st.integers(20, 140),
    o=st.integers(1, 65),
    size=st.tuples(st.integers(3, 9), st.integers(3, 17)),
    kernel=st.sampled_from([(1, 1), (3, 3), (1, 3), (3, 1)]),
    wide_share=st.sampled_from([0.0, 0.02, 0.1, 1.0]),
    seed=st.integers(0, 2**20),
    group=st.sampled_from([1, 1, 2]),
    least=st.sampled_from([-127, -128]),
)
def test_sorted_steps_equal_the_interpreter(
    target: str,
    c: int,
    o: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    wide_share: float,
    seed: int,
    group: int,
    least: int,
) -> None:
    graph, feeds = convolution(c, o, size, kernel, wide_share, seed, group, least)
    assert_agree(graph, feeds, target, threads=1 + seed % 2)


@pytest.mark.parametrize(("wide_share", "uses_pairs"), [(0.0, True), (0.1, True), (1.0, False)])
def test_avx2_sums_pairs_where_weights_allow(wide_share: float, uses_pairs: bool) -> None:
    graph, _ = convolution(128, 16, (3, 3), (3, 3), wide_share, seed=1)
    program, _ = planned(graph)
    texts = [
        emit(s, level_target("avx2")).ir for s in program.instructions if isinstance(s, Compute)
    ]
    assert any(PAIRS in text for text in texts) == uses_pairs
