"""Integer convolutions are exact in whatever precision the reference chooses."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.ir.ops.contraction import exact_operands
from quantglow.ir.types import DType, QuantParams, TensorType

LIMIT = 2**24


@pytest.mark.parametrize(
    ("inputs", "precision"), [(518, np.float32), (519, np.float64), (40_000, np.float64)]
)
def test_float32_serves_where_no_sum_can_reach_its_limit(inputs: int, precision: type) -> None:
    kind = TensorType(DType.I8, (1, inputs), QuantParams.per_tensor(0.1, -128))
    x, w = np.full((1, 1, 1, inputs), 127, np.int8), np.full((inputs, 1), 127, np.int8)
    images, weights = exact_operands(kind, x, w)
    assert images.dtype == weights.dtype == precision
    assert (255 * 127 * inputs < LIMIT) == (precision is np.float32)
    assert int((images.whole()[0, 0] @ weights)[0, 0]) == 255 * 127 * inputs
