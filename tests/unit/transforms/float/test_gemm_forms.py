"""Products with weights are Gemms; those of a squeeze-excite are convolutions."""

from __future__ import annotations

import pytest

from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Gemm, MatMul, Mul, ReduceMean, Relu, Sigmoid
from quantglow.transforms.float import gemm_to_conv, matmul_to_gemm, optimize
from tests.support.builder import Builder, assert_same_function, ops_of, rewritten


@pytest.mark.parametrize(("shape", "ops"), [((2, 3), 1), ((4, 2, 3), 3), ((1, 4, 2, 3), 3)])
def test_a_product_with_weights_is_a_gemm(shape: tuple[int, ...], ops: int) -> None:
    b = Builder()
    y = b.make(MatMul, x=b.input(*shape), y=b.drawn(3, 4))
    after = ops_of(rewritten(matmul_to_gemm, b, [y]))
    assert ("MatMul" not in after, len(after)) == (True, ops)


def test_a_product_of_activations_stays() -> None:
    b = Builder()
    before = b.graph(b.make(MatMul, x=b.input(2, 3), y=b.input(3, 4)))
    assert matmul_to_gemm(before) is before


def excitation(b: Builder, x: Node, extra: bool = False) -> list[Node]:
    n, _, _, c = x.type.shape
    squeezed = b.reshape(b.make(ReduceMean, x=x, axes=(1, 2)), n, c)
    inner = b.gemm(squeezed, 3)
    gate = b.make(Sigmoid, x=b.gemm(b.make(Relu, x=inner), c))
    return [b.make(Mul, x=x, y=b.reshape(gate, n, 1, 1, c)), *([inner] if extra else [])]


def test_squeeze_excite_with_gemm_becomes_convolutions() -> None:
    b = Builder()
    y = excitation(b, b.input(2, 3, 3, 4))
    after = ops_of(rewritten(gemm_to_conv, b, y))
    assert after == ["ReduceMean", "Conv", "Relu", "Conv", "Sigmoid", "Mul"]


def test_a_squeeze_that_others_read_stays_a_gemm() -> None:
    b = Builder()
    y = excitation(b, b.input(2, 3, 3, 4), extra=True)
    assert "Gemm" in ops_of(rewritten(gemm_to_conv, b, y))


def test_a_classifier_stays_a_gemm() -> None:
    b = Builder()
    x = b.make(ReduceMean, x=b.input(2, 3, 3, 4), axes=(1, 2))
    before = b.graph(b.make(Gemm, x=b.reshape(x, 2, 4), w=b.drawn(4, 5)))
    assert gemm_to_conv(before) is before


@pytest.mark.parametrize("keepdims", [True, False])
def test_squeeze_excite_in_nchw_ends_without_layout_changes(keepdims: bool) -> None:
    b = Builder()
    x = b.conv(b.input(1, 2, 4, 4), 4)
    squeezed = b.global_mean(x, keepdims)
    flat = b.reshape(squeezed, 1, 4) if keepdims else squeezed
    gate = b.make(Sigmoid, x=b.gemm(b.make(Relu, x=b.gemm(flat, 2)), 4))
    before = b.graph(b.conv(b.make(Mul, x=x, y=b.reshape(gate, 1, 4, 1, 1)), 3))
    after = optimize(before)
    assert_same_function(before, after)
    assert ops_of(after)[1:-1] == ["Conv", "ReduceMean", "Conv", "Conv", "Sigmoid", "Mul", "Conv"]
