"""Words that hold the weights of two activations, for every pair of weights."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.codegen.llvm.isa.costs import Core
from quantglow.codegen.llvm.isa.x86.products import BYTE_PRODUCTS, X86ByteProducts
from quantglow.codegen.llvm.targets import level_target
from quantglow.ir.types import DType
from quantglow.support.arrays import Array

SSE2, AVX2 = "x86-64", "avx2"
WEIGHTS = np.arange(-127, 128, dtype=np.int8)


def nested() -> tuple[Array, Array, Array]:
    """All pairs of weights, as int64, and their words."""
    first, second = (each.reshape(-1) for each in np.meshgrid(WEIGHTS, WEIGHTS))
    dot = level_target(AVX2).isa.symmetric_product(DType.U8, Core())
    assert dot is not None
    quads = np.stack([first, second, first, second], axis=-1)
    words = dot.pack(quads)
    assert words.dtype == np.int16
    return first.astype(np.int64), second.astype(np.int64), words[:, 0].astype(np.int64)


def test_every_way_has_its_dot_products() -> None:
    assert BYTE_PRODUCTS.keys() == set(X86ByteProducts)


def test_rounding_gives_the_first_weight() -> None:
    first, _, words = nested()
    np.testing.assert_array_equal((words * -128 + 2**14) >> 15, first)  # pmulhrsw


def test_a_difference_and_a_shift_give_the_first_weight() -> None:
    first, _, words = nested()
    assert (128 - words).max() < 2**15  # psubw does not wrap around
    np.testing.assert_array_equal((128 - words) >> 8, first)


@pytest.mark.parametrize("a", [0, 1, 127, 128, 254, 255])
@pytest.mark.parametrize("b", [0, 1, 127, 128, 254, 255])
def test_products_with_a_word_are_those_of_both_weights(a: int, b: int) -> None:
    first, second, words = nested()
    flipped = 256 * b + a - 2**15
    assert -(2**15) <= flipped < 2**15
    total = flipped * first + b * words
    np.testing.assert_array_equal(total, a * first + b * second - 2**15 * first)


@pytest.mark.parametrize("level", [SSE2, AVX2])
def test_the_excess_is_that_of_the_even_weights(level: str) -> None:
    dot = level_target(level).isa.symmetric_product(DType.U8, Core())
    assert dot is not None and dot.exceeds
    quads = np.array([[3, 5, -7, 11], [-127, 127, 127, 1]], np.int8)
    np.testing.assert_array_equal(dot.excess(quads), [4 * 2**15, 0])
    alone = np.array([[3, 0, -7, 0]], np.int8)
    np.testing.assert_array_equal(dot.excess(alone, positions=(0, 2)), [0])
