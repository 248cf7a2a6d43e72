"""Strides under another shape are those of NumPy's reshape, where that needs no copy."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.program.strides import dense_strides, reshape_strides

SIZES = (1, 2, 3, 4, 6)


@st.composite
def views(draw: st.DrawFn) -> np.ndarray:
    """Bytes, so that strides count elements; permuted, cut and broadcast."""
    shape = draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=4))
    view = np.zeros(shape, np.int8).transpose(draw(st.permutations(range(len(shape)))))
    if draw(st.booleans()):
        axis = draw(st.integers(0, view.ndim - 1))
        view = np.moveaxis(np.moveaxis(view, axis, 0)[:: draw(st.integers(1, 2))], 0, axis)
    if draw(st.booleans()):
        view = np.broadcast_to(view, (draw(st.sampled_from(SIZES)), *view.shape))
    return view


@st.composite
def shapes_of(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """A shape of so many elements."""
    shape = []
    while size > 1 and len(shape) < 4:
        shape.append(draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0])))
        size //= shape[-1]
    return tuple(draw(st.permutations([*shape, size])))


@given(st.data())
def test_strides_are_those_of_numpy(data: st.DataObject) -> None:
    view = data.draw(views())
    new = data.draw(st.one_of(shapes_of(view.size), st.just(view.shape)))
    reshaped = view.reshape(new)
    expected = reshaped.strides if np.shares_memory(view, reshaped) else None
    actual = reshape_strides(view.shape, view.strides, new)
    assert (actual is None) == (expected is None)
    if actual is not None:
        wide = [i for i, size in enumerate(new) if size > 1]
        assert [actual[i] for i in wide] == [expected[i] for i in wide]


def test_a_tensor_of_any_size_takes_no_memory() -> None:
    shape = (2**40, 2**20, 3)
    assert reshape_strides(shape, (0, 3, 1), (2**60, 3)) is None
    assert reshape_strides(shape, dense_strides(shape), (2**60, 3)) == (3, 1)
    assert math.prod(shape) > 2**60


def test_a_tensor_without_elements_is_dense() -> None:
    assert reshape_strides((0, 4), (9, 9), (2, 0)) == (0, 1)
