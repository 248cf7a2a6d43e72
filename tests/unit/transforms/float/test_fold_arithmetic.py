"""Arithmetic with Constants: simplified, merged, folded behind and before contractions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops import (
    Add,
    Conv,
    ConvTranspose,
    Div,
    Elementwise,
    Gemm,
    Mul,
    Neg,
    Pow,
    Relu,
    Reshape,
    Sub,
    Transpose,
)
from quantglow.ir.ops.expression import arg, call
from quantglow.ir.types import DType, ElementType, TensorType
from quantglow.transforms.float import (
    fold_arithmetic,
    fold_arithmetic_into_consumer,
    merge_arithmetic,
    simplify_arithmetic,
)
from quantglow.transforms.rewrite import repeat
from tests.support.builder import Builder, ops_of, rewritten
from tests.support.effort import moderate

together = repeat("arithmetic", simplify_arithmetic, merge_arithmetic, fold_arithmetic)


def conv(b: Builder, /, **fields: Any) -> Node:
    return b.make(Conv, x=b.input(1, 3, 3, 4), w=b.drawn(2, 2, 4, 4), **fields)


@pytest.mark.parametrize("op", [Add, Sub, Mul, Div])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 1, 4), (1, 1, 1, 4), (1, 1, 1, 1)])
def test_constants_behind_a_conv_go_into_it(op: type[Node], shape: tuple[int, ...]) -> None:
    b = Builder()
    y = b.make(op, x=conv(b, b=b.drawn(4)), y=b.drawn(*shape, low=0.5))
    assert ops_of(rewritten(together, b, [y])) == ["Conv"]


@pytest.mark.parametrize("op", [Add, Sub, Mul])
def test_constants_on_the_left_go_into_it(op: type[Node]) -> None:
    b = Builder()
    assert ops_of(rewritten(together, b, [b.make(op, x=b.drawn(4), y=conv(b))])) == ["Conv"]


def test_neg_goes_into_it() -> None:
    b = Builder()
    assert ops_of(rewritten(together, b, [b.make(Neg, x=conv(b))])) == ["Conv"]


def test_conv_transpose_takes_them() -> None:
    b = Builder()
    x = b.make(ConvTranspose, x=b.input(1, 2, 2, 3), w=b.drawn(2, 2, 3, 4), strides=(2, 2))
    y = b.make(Mul, x=b.make(Add, x=x, y=b.drawn(4)), y=b.drawn(4))
    assert ops_of(rewritten(together, b, [y])) == ["ConvTranspose"]


def test_gemm_takes_a_bias() -> None:
    b = Builder()
    x = b.make(Gemm, x=b.input(2, 3), w=b.drawn(3, 4))
    assert ops_of(rewritten(fold_arithmetic, b, [b.make(Add, x=x, y=b.drawn(4))])) == ["Gemm"]


def test_a_constant_that_varies_by_position_is_refused() -> None:
    b = Builder()
    y = b.make(Add, x=conv(b), y=b.drawn(1, 2, 1, 1))
    assert ops_of(rewritten(fold_arithmetic, b, [y])) == ["Conv", "Add"]


def test_a_constant_that_widens_the_result_is_refused() -> None:
    b = Builder()
    x = b.make(Conv, x=b.input(1, 3, 3, 4), w=b.drawn(2, 2, 4, 1))
    y = b.make(Mul, x=x, y=b.drawn(4))
    assert ops_of(rewritten(fold_arithmetic, b, [y])) == ["Conv", "Mul"]


def test_a_conv_with_another_reader_is_refused() -> None:
    b = Builder()
    x = conv(b)
    after = rewritten(together, b, [b.make(Mul, x=x, y=b.drawn(4)), b.make(Relu, x=x)])
    assert ops_of(after).count("Mul") == 1


def test_a_conv_with_bounds_is_refused() -> None:
    b = Builder()
    y = b.make(Mul, x=conv(b, high=0.5), y=b.drawn(4))
    assert ops_of(rewritten(fold_arithmetic, b, [y])) == ["Conv", "Mul"]


@given(
    group=st.sampled_from([1, 2, 4]),
    op=st.sampled_from([Add, Mul]),
    shape=st.sampled_from([(), (4,), (1, 1, 1, 4)]),
)
@moderate
def test_constants_before_a_conv_go_into_it(
    group: int, op: type[Node], shape: tuple[int, ...]
) -> None:
    b = Builder()
    x = b.make(op, x=b.input(1, 3, 3, 4), y=b.drawn(*shape))
    y = b.make(Conv, x=x, w=b.drawn(2, 2, 4 // group, 8), group=group)
    assert ops_of(rewritten(fold_arithmetic_into_consumer, b, [y])) == ["Conv"]


def test_a_scale_goes_into_a_padded_conv_but_a_shift_does_not() -> None:
    b = Builder()
    shifted = b.make(Add, x=b.make(Mul, x=b.input(1, 3, 3, 4), y=b.drawn(4)), y=b.drawn(4))
    y = b.make(Conv, x=shifted, w=b.drawn(2, 2, 4, 4), pads=(1, 0, 0, 0))
    after = rewritten(fold_arithmetic_into_consumer, b, [y])
    assert ops_of(after) == ["Mul", "Add", "Conv"]


@pytest.mark.parametrize("shift", [(-64.0, -32.0), (0.0, 0.0), (3.0, -1e9)])
def test_a_scale_of_bytes_goes_into_a_padded_conv(shift: tuple[float, float]) -> None:
    """Bytes have one range for all channels, scaled ones do not; a shift beyond them is none."""
    b = Builder()
    x = b.make(Input, tensor=TensorType(DType.U8, (1, 3, 3, 2)))
    b.inputs.append(x)
    as_float = call("float", arg(0))
    pixels = b.make(Elementwise, args=(x,), expression=as_float, out=ElementType(DType.F32))
    scaled = b.make(Mul, x=pixels, y=b.constant(np.float32([0.5, 0.25])))
    moved = b.make(Add, x=scaled, y=b.constant(np.float32(shift)))
    y = b.make(Conv, x=moved, w=b.drawn(2, 2, 2, 4), pads=(1, 0, 1, 1))
    after = rewritten(fold_arithmetic_into_consumer, b, [y])
    folds = max(map(abs, shift)) < 1e3
    assert ops_of(after) == ["Elementwise", *(["Add"] if folds else ["Mul", "Add"]), "Conv"]


def test_constants_before_a_gemm_go_into_it() -> None:
    b = Builder()
    shifted = b.make(Add, x=b.make(Mul, x=b.input(2, 3), y=b.drawn(3)), y=b.drawn(3))
    y = b.make(Gemm, x=shifted, w=b.drawn(3, 4), b=b.drawn(4))
    assert ops_of(rewritten(fold_arithmetic_into_consumer, b, [y])) == ["Gemm"]


@pytest.mark.parametrize("op", [Add, Mul])
@pytest.mark.parametrize("shape", [(), (4, 1), (1, 9), (4, 9)])
def test_constants_of_rows_that_become_channels_go_into_the_conv(
    op: type[Node], shape: tuple[int, ...]
) -> None:
    b = Builder()
    rows = b.make(op, x=b.input(4, 9), y=b.drawn(*shape))
    moved = b.make(Transpose, x=b.make(Reshape, x=rows, shape=(1, 4, 3, 3)), perm=(0, 2, 3, 1))
    y = b.make(Conv, x=moved, w=b.drawn(2, 2, 4, 4))
    after = rewritten(fold_arithmetic_into_consumer, b, [y])
    folds = shape == (4, 1)
    assert ops_of(after) == [*([] if folds else [op.__name__]), "Reshape", "Transpose", "Conv"]
    assert (moved.name in after.names) is not folds


@pytest.mark.parametrize("shape", [(), (0, 4), (4, 0)])
def test_scalars_and_empty_rows_stay_before_moves(shape: tuple[int, ...]) -> None:
    b = Builder()
    scaled = b.make(Mul, x=b.input(*shape), y=b.drawn(*shape[:1], *(1,) * len(shape[1:])))
    rows = b.make(Reshape, x=scaled, shape=(1, 1) if shape == () else (shape[1], shape[0]))
    y = b.make(Gemm, x=rows, w=b.drawn(rows.type.shape[1], 3))
    assert "Mul" in ops_of(rewritten(fold_arithmetic_into_consumer, b, [y]))


@given(ops=st.lists(st.sampled_from([Add, Sub, Mul, Div]), min_size=1, max_size=6))
@moderate
def test_a_chain_becomes_at_most_one_scale_and_one_shift(ops: list[type[Node]]) -> None:
    b = Builder()
    x: Node = b.input(2, 3)
    for op in ops:
        x = b.make(op, x=x, y=b.drawn(3, low=0.5))
    assert ops_of(rewritten(together, b, [x])) in (["Mul"], ["Add"], ["Mul", "Add"])


def test_chains_that_would_grow_a_constant_stay() -> None:
    b = Builder()
    x = b.make(Mul, x=b.make(Mul, x=b.input(4, 4), y=b.drawn(4, 1)), y=b.drawn(1, 4))
    assert ops_of(rewritten(merge_arithmetic, b, [x])) == ["Mul", "Mul"]


@pytest.mark.parametrize("divisor", [0.0, 1e-38, float("inf")])
def test_division_without_a_finite_reciprocal_stays(divisor: float) -> None:
    b = Builder()
    before = b.graph(b.make(Div, x=b.input(2), y=b.constant(np.float32(divisor))))
    assert simplify_arithmetic(before) is before


@pytest.mark.parametrize(("exponent", "op"), [(2.0, "Mul"), (3.0, "Pow")])
def test_squares_are_products(exponent: float, op: str) -> None:
    b = Builder()
    y = b.make(Pow, x=b.input(3), y=b.constant(exponent))
    assert ops_of(rewritten(simplify_arithmetic, b, [y])) == [op]
