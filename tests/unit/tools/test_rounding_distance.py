"""Distances of rounded floats from ties, behind operators whose last bit differs."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Dequantize, Quantize, Sigmoid
from quantglow.ir.types import DType, ElementType, QuantParams
from tests.support.builder import Builder
from tools.rounding_distance import distance, inexact_roundings

STEPS = ElementType(DType.I8, QuantParams.per_tensor(1 / 128, 0))


def graph() -> Graph:
    """A value rounded as it is, and its sigmoid, rounded, restored and rounded again."""
    b = Builder()
    x = b.input(1, 3)
    exact = b.make(Quantize, x=x, out=STEPS)
    once = b.make(Quantize, x=b.make(Sigmoid, x=x), out=STEPS)
    twice = b.make(Quantize, x=b.make(Dequantize, x=once), out=STEPS)
    return b.graph(exact, once, twice)


def test_only_what_follows_a_float_function_counts() -> None:
    actual, built = inexact_roundings(graph()), graph()
    assert [node.name for node in actual] == [built.outputs[1][1].name]


def test_distance_is_that_of_the_nearest_value() -> None:
    built = graph()
    x = np.array([[0.0, 100.0, -100.0]], np.float32)  # 64, 128 and 0 steps
    assert distance(built, {built.inputs[0].name: x}) == pytest.approx(0.5)
    near = np.log(np.float32(64.6) / np.float32(63.4))  # 64.6 of 128 steps
    assert distance(built, {built.inputs[0].name: x + near}) == pytest.approx(0.1, abs=1e-3)


def test_graphs_of_exact_operators_are_as_far_as_can_be() -> None:
    b = Builder()
    built = b.graph(b.make(Quantize, x=b.input(1, 1), out=STEPS))
    tie = np.array([[0.5 / 128]], np.float32)
    assert distance(built, {built.inputs[0].name: tie}) == 0.5
