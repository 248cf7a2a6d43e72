"""Factors behind products with quantized weights go into scales; the user's integers stay."""

from __future__ import annotations

import numpy as np
import pytest

import quantglow as qg
from quantglow.ir.graph.node import Constant
from quantglow.ir.ops import Conv
from quantglow.ir.types import DType
from tests.unit.quantization.qdq.qdq_models import (
    INT8,
    UINT8,
    QdqModel,
    by_onnxruntime,
    steps_apart,
)

STEP = 0.05


def model_with(gamma: np.ndarray, codes: np.ndarray) -> tuple[QdqModel, str]:
    """Conv, BatchNormalization and Relu between two roundings."""
    m = QdqModel()
    x = m.rounded(m.input(1, 6, 5, 5), 0.0297, 110)
    w = m.dequantize(m.tensor(codes), m.random.uniform(0.002, 0.02, 4), [0] * 4, INT8, axis=0)
    parameters = (gamma, m.random.uniform(-1, 1, 4), m.random.uniform(-1, 1, 4), np.ones(4))
    tensors = (m.tensor(p.astype(np.float32)) for p in parameters)
    y = m.op("BatchNormalization", m.op("Conv", x, w), *tensors)
    return m, m.rounded(m.op("Relu", y), STEP, 20, UINT8)


@pytest.mark.parametrize("gamma", [(1, 2, 0.5, 0.1), (1, -2, 0.5, -0.1)])
def test_batch_normalization_leaves_the_integers_of_the_weights(gamma: tuple[float, ...]) -> None:
    codes = np.random.default_rng(1).integers(-127, 128, (4, 6, 3, 3), dtype=np.int8)
    m, y = model_with(np.array(gamma), codes)
    model, feeds = m.model(y), m.feeds()
    graph = qg.import_model(model)
    (conv,) = (n for n in graph.nodes if isinstance(n, Conv))
    assert isinstance(conv.w, Constant) and conv.out is not None
    signs = np.sign(gamma).astype(np.int8)
    assert np.array_equal(conv.w.value, codes.transpose(2, 3, 1, 0) * signs)
    (expected,) = by_onnxruntime(model, feeds)
    steps = steps_apart(qg.interpret(graph, feeds)[0], expected, STEP)
    assert steps.max() <= 1 and steps.mean() <= 0.01


@pytest.mark.parametrize(("gamma", "lowest"), [((1, 0, 0.5, 0.1), -127), ((1, -2, 0.5, 1), -128)])
def test_factors_that_no_scale_can_hold_stay_behind_the_product(
    gamma: tuple[float, ...], lowest: int
) -> None:
    """A factor of 0; and -128, whose negative is no int8."""
    codes = np.full((4, 6, 3, 3), lowest, np.int8)
    m, y = model_with(np.array(gamma), codes)
    model, feeds = m.model(y), m.feeds()
    graph = qg.import_model(model)
    (conv,) = (n for n in graph.nodes if isinstance(n, Conv))
    assert conv.out is None and conv.w.type.dtype is DType.I8
    (expected,) = by_onnxruntime(model, feeds)
    assert steps_apart(qg.interpret(graph, feeds)[0], expected, STEP).max() <= 1
