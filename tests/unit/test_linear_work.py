"""The work of each stage grows in proportion to the number of nodes.

Calls of Python functions are counted, not seconds: twice the nodes are twice the calls, in a whole
stage and in each of its functions.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.support.arrays import Array
from tests.generators.onnx_models.drawing import Value
from tests.generators.onnx_models.network_drawing import NetworkDrawing, drawing

BLOCKS = 40
"""Blocks of the smaller model, of three or four nodes each."""

MOST_GROWTH = 2.3
"""Maximum ratio of a stage's calls for twice the nodes."""

MOST_GROWTH_OF_ONE = 3.0
"""The same of one function: 4 if it compares all pairs.  Sizes of fused expressions add to 2."""

FREQUENT = 300
"""Functions that are called more rarely for the larger model are left out."""

SHAPE = (1, 4, 3, 3)
Counts = Counter[CodeType]


def drawing_of_input() -> tuple[NetworkDrawing, Value]:
    """A network under construction, and its input."""
    model = drawing(0)
    return model, model.free_input(SHAPE, SHAPE)


def chain(blocks: int) -> onnx.ModelProto:
    """A convolution, Relu and an addition after the other."""
    model, x = drawing_of_input()
    x = model.inner("Tanh", x)
    for _ in range(blocks):
        y = model.inner("Conv", x, model.filters(4, 4, 1, 1, scale=0.1))
        x = model.inner("Add", x, model.inner("Relu", y))
    return model.proto(x, SHAPE)


def wide(blocks: int) -> onnx.ModelProto:
    """Functions of one value, in a tree of additions."""
    model, x = drawing_of_input()
    ends = [
        model.inner(kind, model.inner("Mul", x, model.filters(4, 1, 1)))
        for kind in ("Sigmoid", "Tanh") * (blocks // 2)
    ]
    while len(ends) > 1:
        pairs = zip(ends[::2], ends[1::2], strict=False)
        ends = [*(model.inner("Add", *pair) for pair in pairs), *ends[len(ends) // 2 * 2 :]]
    return model.proto(ends[0], SHAPE)


def joined(blocks: int) -> onnx.ModelProto:
    """Convolutions of one value, joined by one Concat."""
    model, x = drawing_of_input()
    ends = [
        model.inner("Relu", model.inner("Conv", x, model.filters(4, 4, 1, 1)))
        for _ in range(blocks)
    ]
    return model.proto(model.inner("Concat", *ends, axis=1), (1, 4 * blocks, 3, 3))


MODELS = {"chain": chain, "wide": wide, "joined": joined}


def counted(stage: Callable[[], Any]) -> tuple[Any, Counts]:
    """The result of a stage, and the calls of its functions in this thread."""
    counter: Counts = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            counter[frame.f_code] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = stage()
    finally:
        sys.setprofile(before)
    return result, counter


def stages(model: onnx.ModelProto, data: list[Array]) -> dict[str, Counts]:
    """The calls of each stage, from ONNX to compiled int8."""
    calls: dict[str, Counts] = {}
    graph, calls["import"] = counted(lambda: qg.import_model(model))
    profile, calls["profile"] = counted(lambda: qg.profile(graph, data, progress=False))
    _, calls["ranges"] = counted(lambda: qg.quantize(graph, profile))
    int8, calls["quantize"] = counted(lambda: qg.quantize(graph, profile, data=data))
    _, calls["compile"] = counted(lambda: qg.compile(int8, num_threads=1))
    return calls


FIRST, *OTHERS = MODELS


@pytest.mark.parametrize(
    "name", [FIRST, *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS)]
)
def test_twice_the_nodes_are_twice_the_calls(name: str) -> None:
    data = list(np.random.default_rng(0).standard_normal((4, *SHAPE)).astype(np.float32))
    stages(MODELS[name](4), data)  # Fills caches and loads modules.
    once, twice = (stages(MODELS[name](blocks), data) for blocks in (BLOCKS, 2 * BLOCKS))
    for stage, calls in twice.items():
        growth = calls.total() / once[stage].total()
        assert growth < MOST_GROWTH, (stage, growth)
        steep = {
            code.co_qualname: (once[stage][code], number)
            for code, number in calls.items()
            if number > max(FREQUENT, MOST_GROWTH_OF_ONE * once[stage][code])
        }
        assert steep == {}, stage
