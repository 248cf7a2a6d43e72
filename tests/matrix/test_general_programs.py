"""General programs: one program serves all shapes with the bytes of programs of their own."""

from __future__ import annotations

import pytest

from quantglow.backends.llvm.targets import resolve
from quantglow.graph.graph import Graph
from quantglow.ops import Add, Mul, Relu, Sigmoid, Transpose
from tests.matrix.general import LEVELS, Make, Sizes, assert_serves
from tests.support.builder import Builder


def elementwise(sizes: Sizes) -> Graph:
    b = Builder()
    x = b.input(sizes["N"], sizes["T"], 24)
    doubled = b.make(Mul, x=x, y=b.drawn(24))
    return b.graph(b.make(Sigmoid, x=b.make(Transpose, x=b.make(Relu, x=doubled), perm=(0, 2, 1))))


@pytest.mark.parametrize("target", LEVELS)
def test_elementwise(target: str) -> None:
    others = [{"N": n, "T": t} for n, t in ((2, 17), (2, 64), (7, 129))]
    assert_serves(elementwise, {"N": 3, "T": 37}, others, resolve(target))


def convolutions(channels: int, kernel: int, stride: int) -> Make:
    def make(sizes: Sizes) -> Graph:
        b = Builder()
        x = b.input(1, 8, 6, sizes["W"])
        y = b.conv(x, channels, kernel, strides=(stride, stride))
        return b.graph(b.make(Add, x=b.conv(y, channels), y=y))

    return make


@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize(("channels", "kernel", "stride"), [(24, 3, 1), (40, 3, 2), (5, 1, 1)])
def test_convolution(target: str, channels: int, kernel: int, stride: int) -> None:
    make = convolutions(channels, kernel, stride)
    assert_serves(make, {"W": 39}, [{"W": w} for w in (31, 40, 67, 128)], resolve(target))
