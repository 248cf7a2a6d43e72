"""Kernels that take sizes as operands serve images of all sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantglow as qg
from quantglow.codegen.llvm.targets import LEVELS, runs_here
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Conv, Pad
from quantglow.ir.program.program import Compute, Fill
from quantglow.ir.types import DType, TensorType
from tests.support.effort import moderate
from tests.support.free_network import free_model, image, wide_model

TARGETS = [name for name in LEVELS if runs_here(name)]


def kernels(model: Any, shape: tuple[int, ...], expected: Any) -> list[int]:
    """Addresses of the kernels of the wanted steps at this shape."""
    compiled = qg.compile(model, num_threads=1)
    actual = compiled.specialisations.at({"x": image(shape)}).build.executable
    return [
        a
        for call, a in zip(actual.program.calls, actual.loaded.functions, strict=True)
        if expected(call.step)
    ]


def is_convolution(step: Any) -> bool:
    return isinstance(step, Compute) and isinstance(step.op, Conv)


def test_rows_of_pixels_of_any_length_share_a_kernel() -> None:
    shapes = [(2, 64, 16, 24), (1, 64, 24, 64), (1, 64, 48, 64)]
    actual = {tuple(kernels(wide_model(), shape, is_convolution)) for shape in shapes}
    assert len(actual) == 1


def test_frames_of_any_size_share_a_kernel() -> None:
    shapes = [(1, 3, 8, 8), (1, 3, 20, 12), (1, 3, 9, 31)]
    actual = {tuple(kernels(free_model(), s, lambda step: isinstance(step, Fill))) for s in shapes}
    assert len(actual) == 1
    assert actual != {()}


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", TARGETS)
@moderate
@given(
    shape=st.tuples(*(st.integers(0, 9),) * 3, st.sampled_from((1, 3, 16, 17, 40))),
    before=st.tuples(*(st.integers(0, 3),) * 4),
    after=st.tuples(*(st.integers(0, 3),) * 4),
    value=st.sampled_from((0.0, -1.5)),
    threads=st.sampled_from((1, 3)),
)
def test_padding_is_what_numpy_pads(
    target: str, shape: Any, before: Any, after: Any, value: float, threads: int
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    source = Input(name="x", tensor=TensorType(DType.F32, shape))
    padded = Pad(name="y", x=source, before=before, after=after, value=value)
    compiled = qg.compile(Graph((source,), (("y", padded),)), target, threads)
    expected = np.pad(x, list(zip(before, after, strict=True)), constant_values=value)
    np.testing.assert_array_equal(compiled(x), expected)
