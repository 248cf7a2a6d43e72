"""Multiply-accumulates, counted from types."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Conv, ConvTranspose
from quantglow.ir.ops.work import count_evaluated_macs, count_macs
from quantglow.ir.types import f32


@pytest.mark.parametrize("group", [1, 2])
def test_a_transposed_convolution_multiplies_each_element_by_its_kernel(group: int) -> None:
    x = Input(name="x", tensor=f32(1, 5, 6, 4))
    w = Constant(name="w", value=np.ones((3, 2, 4 // group, 8), np.float32))
    node = ConvTranspose(name="y", x=x, w=w, strides=(3, 2), group=group)
    assert count_macs(node) == 5 * 6 * 4 * (3 * 2 * 8 // group)
    assert count_evaluated_macs(node) == 3 * 2 * count_macs(node)


@pytest.mark.parametrize("group", [1, 2])
def test_a_convolution_sums_its_window_for_each_result(group: int) -> None:
    x = Input(name="x", tensor=f32(1, 5, 6, 4))
    w = Constant(name="w", value=np.ones((3, 2, 4 // group, 8), np.float32))
    node = Conv(name="y", x=x, w=w, group=group)
    assert count_macs(node) == count_evaluated_macs(node) == 3 * 5 * 8 * (3 * 2 * 4 // group)
