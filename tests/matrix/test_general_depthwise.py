"""General programs of depthwise convolutions: images of any number and size."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Constant, Conv
from quantglow.ir.types import DType, ElementType, QuantParams
from tests.generators.quantized_graphs.convolutions import element, tensor
from tests.matrix.general import LEVELS, Make, Sizes, assert_serves
from tests.matrix.harness import TARGETS
from tests.support.combinations import covering

HINT = {"N": 2, "H": 21, "W": 38}
OTHERS = [
    {"N": n, "H": h, "W": w}
    for n, h, w in ((3, 11, 16), (2, 16, 17), (5, 31, 32), (2, 9, 67), (4, 64, 40))
]
CASES = [
    # channels, kernel, stride, dilation
    (64, (3, 3), (1, 1), 1),
    (48, (5, 5), (2, 2), 1),
    (19, (3, 3), (2, 1), 1),
    (96, (1, 7), (1, 2), 1),
    (33, (3, 3), (1, 1), 2),
]


def depthwise(
    dtype: DType,
    channels: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: int,
    residual: bool = False,
) -> Make:
    """Graphs of one depthwise convolution, to which its input may be added."""
    rng = np.random.default_rng(channels)
    weights = rng.integers(-127, 128, (*kernel, 1, channels))
    reach = [dilation * (k - 1) for k in kernel]
    fields = {
        "group": channels,
        "strides": strides,
        "dilations": (dilation, dilation),
        "pads": (reach[0] // 2, reach[1] // 2, reach[0] // 2, reach[1] - reach[1] // 2),
        "low": 0.0,
        "high": math.inf,
    }

    def make(sizes: Sizes) -> Graph:
        shape = (sizes["N"], sizes["H"], sizes["W"], channels)
        if dtype is DType.F32:
            x = tensor("x", shape, ElementType(DType.F32))
            w = Constant(name="w", value=(weights / 100).astype(np.float32))
            b = Constant(name="b", value=np.linspace(-1, 1, channels, dtype=np.float32))
            y = Conv(name="y", x=x, w=w, b=b, residual=x if residual else None, **fields)
            return Graph((x,), (("y", y),))
        x = tensor("x", shape, element(dtype, 0.05, -3))
        scales = QuantParams.symmetric(np.linspace(1e-3, 1e-2, channels, dtype=np.float32), 3)
        w = Constant(name="w", value=weights.astype(np.int8), element=ElementType(DType.I8, scales))
        b = Constant(name="b", value=np.arange(channels, dtype=np.int32))
        added, out = x if residual else None, element(dtype, 0.11, 5)
        y = Conv(name="y", x=x, w=w, b=b, residual=added, out=out, **fields)
        return Graph((x,), (("y", y),))

    return make


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("dtype", "case", "target"), covering([DType.F32, DType.I8], CASES, TARGETS), ids=str
)
def test_depthwise(dtype: DType, case: tuple, target: str) -> None:
    assert_serves(depthwise(dtype, *case), HINT, OTHERS, resolve(target))


@pytest.mark.slow_variants
@pytest.mark.parametrize(("dtype", "target"), covering([DType.F32, DType.I8, DType.I16], TARGETS))
def test_residuals(dtype: DType, target: str) -> None:
    for case in (CASES[0], CASES[4]):
        assert_serves(depthwise(dtype, *case, residual=True), HINT, OTHERS, resolve(target))


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", LEVELS)
def test_words(target: str) -> None:
    assert_serves(depthwise(DType.I16, *CASES[0]), HINT, OTHERS, resolve(target))


@pytest.mark.parametrize("dtype", [DType.F32, DType.I8])
def test_threads(dtype: DType) -> None:
    assert_serves(depthwise(dtype, *CASES[0]), HINT, OTHERS[:2], resolve(TARGETS[0]), threads=2)


@pytest.mark.parametrize("dtype", [DType.F32, DType.I8])
def test_narrow_images(dtype: DType) -> None:
    """Few columns, where an image is narrower than a tile of floats."""
    others = [{"N": 2, "H": 4, "W": 4}, {"N": 5, "H": 2, "W": 64}]
    make = depthwise(dtype, *CASES[0])
    assert_serves(make, {"N": 2, "H": 3, "W": 5}, others, resolve(TARGETS[0]))


@pytest.mark.slow_variants
@pytest.mark.parametrize("dtype", [DType.F32, DType.I8])
@pytest.mark.parametrize(("fixed", "free"), [({"N": 1, "H": 1}, "W"), ({"N": 1, "W": 13}, "H")])
def test_one_free_axis(dtype: DType, fixed: Sizes, free: str) -> None:
    """Sequences, and images of fixed width."""

    def make(sizes: Sizes) -> Graph:
        return depthwise(dtype, 48, (1, 3), (1, 1), 1)({**fixed, **sizes})

    others = [{free: size} for size in (10, 17, 64)]
    assert_serves(make, {free: 31}, others, resolve(TARGETS[0]))
