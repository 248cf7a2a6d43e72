"""Sums of many bytes are exact on every target, whatever the extremes, even if 16 bits are full."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import ReduceMean
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from tests.generators.quantized_graphs.drawing import CHANNELS
from tests.matrix.harness import assert_targets_agree
from tests.support.effort import expensive
from tests.support.guarded import guarded

OUT = ElementType(DType.I16, QuantParams.per_tensor(0.0004, 0))


@pytest.mark.slow_variants
@pytest.mark.parametrize("dtype", [DType.U8, DType.I8])
@expensive
@given(
    rows=st.sampled_from([1, 3, 4, 255, 256, 257, 511, 512, 515, 1030]),
    channels=st.sampled_from(CHANNELS),
    batch=st.integers(1, 2),
    filling=st.sampled_from(["lowest", "highest", "any"]),
)
def test_means_of_many_bytes_are_exact(
    dtype: DType, rows: int, channels: int, batch: int, filling: str
) -> None:
    low, high = dtype.limits
    shape = (batch, rows, channels)
    random = np.random.default_rng(rows * channels)
    values = random.integers(low, high, shape, endpoint=True)
    if filling != "any":
        values = np.full(shape, low if filling == "lowest" else high)
    x = Input(name="x", tensor=TensorType(dtype, shape, QuantParams.per_tensor(0.05, 7)))
    mean = ReduceMean(name="m", x=x, axes=(1,), out=OUT)
    feeds = {"x": guarded(values.astype(dtype.numpy), at_end=True)}
    assert_targets_agree(Graph((x,), (("out", mean),)), feeds)
