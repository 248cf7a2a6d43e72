"""Rows of free lengths and numbers: softmax, normalization, expressions with parts of rows."""

from __future__ import annotations

from unittest import mock

import pytest

from quantglow.codegen.llvm.kernels.elementwise import row_map
from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops import (
    Add,
    Exp,
    LayerNormalization,
    LogSoftmax,
    Mul,
    Quantize,
    Sigmoid,
    Softmax,
    Transpose,
)
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from tests.matrix.general import Make, Sizes, assert_serves, general
from tests.matrix.harness import TARGETS
from tests.support.builder import Builder
from tests.support.combinations import covering

HINT = {"N": 3, "T": 37}
OTHERS = [
    {"N": n, "T": t}
    for n, t in ((5, 2), (5, 3), (2, 15), (2, 16), (3, 17), (2, 63), (2, 64), (2, 65), (4, 200))
]
PARAMS = QuantParams.per_tensor(0.05, 3)


def typed(name: str, *shape: int) -> Input:
    """An input of bytes."""
    return Input(name=name, tensor=TensorType(DType.I8, shape, PARAMS))


def element(scale: float = 0.1, zero_point: int = -4) -> ElementType:
    """The type of a result of bytes."""
    return ElementType(DType.I8, QuantParams.per_tensor(scale, zero_point))


def softmax(sizes: Sizes) -> Graph:
    """Attention: scores and a mask that all rows share."""
    b = Builder()
    x, mask = b.input(sizes["N"], 4, sizes["T"], sizes["T"]), b.input(sizes["N"], 1, 1, sizes["T"])
    shares = b.make(Softmax, x=b.make(Add, x=x, y=mask))
    return b.graph(shares, b.make(LogSoftmax, x=x))


def byte_softmax(sizes: Sizes) -> Graph:
    x = typed("x", sizes["N"], 5, sizes["T"])
    return Graph((x,), (("y", Softmax(name="s", x=x, out=element(1 / 256, -128))),))


def normalization(sizes: Sizes) -> Graph:
    """Rows of a fixed length; their number is free."""
    b = Builder()
    x, y = (b.input(sizes["N"], sizes["T"], 384) for _ in range(2))
    built = b.make(
        LayerNormalization, x=b.make(Add, x=x, y=y), gamma=b.drawn(384), beta=b.drawn(384)
    )
    return b.graph(built)


def byte_normalization(sizes: Sizes) -> Graph:
    x = typed("x", sizes["N"], sizes["T"], 48)
    return Graph((x,), (("y", LayerNormalization(name="n", x=x, out=element())),))


def row_parts(sizes: Sizes) -> Graph:
    """Factors of channels that are kept for all rows; short rows are joined if that divides."""
    b = Builder()
    x, y = b.input(sizes["N"], sizes["T"], 24), b.input(sizes["N"], 24, sizes["T"])
    scale, shift = b.input(24), b.input(sizes["T"])
    recorded: list[Node] = []
    for value, factor in ((x, scale), (y, shift)):
        factors = b.make(Sigmoid, x=b.make(Exp, x=factor))
        recorded.append(b.make(Sigmoid, x=b.make(Mul, x=value, y=factors)))
    return b.graph(*recorded)


def byte_sums(sizes: Sizes) -> Graph:
    x, y = (typed(name, sizes["N"], 7, sizes["T"]) for name in "xy")
    return Graph((x, y), (("z", Add(name="z", x=x, y=y, out=element())),))


def planes(sizes: Sizes) -> Graph:
    """Few channels, interleaved from planes of free sizes."""
    b = Builder()
    image = b.make(Transpose, x=b.input(sizes["N"], 4, sizes["T"], 10), perm=(0, 2, 3, 1))
    return b.graph(b.make(Sigmoid, x=image), b.make(Quantize, x=image, out=element()))


MAKERS = (softmax, byte_softmax, normalization, byte_normalization, row_parts, byte_sums, planes)


@pytest.mark.slow_variants
@pytest.mark.parametrize(("make", "target"), covering(MAKERS, TARGETS))
def test_rows(make: Make, target: str) -> None:
    assert_serves(make, HINT, OTHERS, resolve(target))


def test_rows_on_two_threads() -> None:
    assert_serves(softmax, HINT, [{"N": 8, "T": 129}], resolve(TARGETS[0]), threads=2)


def test_layers_inside_that_are_equal_share_a_text() -> None:
    def layers(sizes: Sizes) -> Graph:
        b = Builder()
        x: Node = b.input(sizes["N"], sizes["T"])
        for _ in range(6):
            x = b.make(Softmax, x=x)
        return b.graph(x)

    kernel = row_map.RowKernel
    with mock.patch.object(kernel, "text", autospec=True, side_effect=kernel.text) as text:
        emitted = general(layers, HINT, resolve(TARGETS[0])).loaded.emitted
    rows = emitted.rows if emitted else ()
    assert len(rows) == 6
    assert text.call_count == 3
