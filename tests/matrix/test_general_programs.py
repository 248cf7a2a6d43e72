"""General programs: one program serves all shapes with the bytes of programs of their own."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Add, Gemm, Mul, Relu, Reshape, Sigmoid, Transpose
from quantglow.runtime.native.executable import LlvmExecutable
from tests.matrix.general import LEVELS, Make, Sizes, assert_serves, general
from tests.matrix.harness import TARGETS, on_llvm
from tests.support.builder import Builder


def elementwise(sizes: Sizes) -> Graph:
    b = Builder()
    x = b.input(sizes["N"], sizes["T"], 24)
    doubled = b.make(Mul, x=x, y=b.drawn(24))
    return b.graph(b.make(Sigmoid, x=b.make(Transpose, x=b.make(Relu, x=doubled), perm=(0, 2, 1))))


@pytest.mark.slow_variants
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


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize(("channels", "kernel", "stride"), [(24, 3, 1), (40, 3, 2), (5, 1, 1)])
def test_convolution(target: str, channels: int, kernel: int, stride: int) -> None:
    make = convolutions(channels, kernel, stride)
    assert_serves(make, {"W": 39}, [{"W": w} for w in (31, 40, 67, 128)], resolve(target))


@pytest.mark.parametrize(("caution", "smallest"), [(0, 39), (2, 9), (4, 3), (6, 2), (8, 2)])
def test_a_program_that_is_made_later_serves_smaller_sizes(caution: int, smallest: int) -> None:
    make, others = convolutions(24, 3, 1), [{"W": w} for w in (smallest, 40, 128)]
    assert_serves(make, {"W": 39}, others, resolve(TARGETS[0]), caution=caution)


def rows_that_become_fixed(sizes: Sizes) -> Graph:
    """Products of free rows, an image of as many pixels, and a product of its pixels, all alike."""
    b = Builder()
    w = b.drawn(64, 64)
    free = b.make(Gemm, x=b.make(Gemm, x=b.input(sizes["T"], 64), w=w), w=w)
    image = b.make(Reshape, x=free, shape=(1, 24, 24, 64))
    fixed = b.make(Gemm, x=b.make(Reshape, x=image, shape=(576, 64)), w=w)
    return b.graph(b.make(Transpose, x=fixed, perm=(1, 0)))


@pytest.mark.parametrize("caution", [0, 6])
def test_a_product_of_fixed_rows_has_its_own_tiles(caution: int) -> None:
    sizes, target = {"T": 576}, resolve(TARGETS[0])
    graph = rows_that_become_fixed(sizes)
    program = general(rows_that_become_fixed, sizes, target, caution=caution)
    feeds = {
        graph.inputs[0].name: np.random.default_rng(0).normal(size=(576, 64)).astype(np.float32)
    }
    served = LlvmExecutable.of(program.loaded, sizes).run(feeds)
    np.testing.assert_array_equal(served, on_llvm(graph, feeds, target))
