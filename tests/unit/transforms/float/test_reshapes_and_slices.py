"""Reshape, Concat and Slice: merged, sunk, read from the part that holds them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.ops import Add, Concat, Relu
from quantglow.transforms.float import merge_reshapes, simplify_concat, simplify_slice, sink_reshape
from tests.support.builder import Builder, cut, ops_of, rewritten
from tests.support.effort import moderate


def test_reshapes_merge() -> None:
    b = Builder()
    x = b.input(2, 3)
    there, back = b.reshape(b.reshape(x, 6), 3, 2), b.reshape(b.reshape(x, 6), 2, 3)
    assert ops_of(rewritten(merge_reshapes, b, [there, back])) == ["Reshape"]


@pytest.mark.parametrize("shape", [(), (1, 1), (1, 1, 4), (3, 1), (2, 3, 4)])
def test_a_reshape_that_adds_ones_sinks(shape: tuple[int, ...]) -> None:
    b = Builder()
    wide = b.reshape(b.input(2, 1, 3, 4), 2, 3, 4)
    y = b.make(Relu, x=b.make(Add, x=wide, y=b.drawn(*shape)))
    assert ops_of(rewritten(sink_reshape, b, [y]))[-1] == "Reshape"


def test_a_reshape_that_mixes_axes_stays_above_a_constant() -> None:
    b = Builder()
    before = b.graph(b.make(Add, x=b.reshape(b.input(2, 6), 3, 4), y=b.drawn(3, 1)))
    assert sink_reshape(before) is before


def test_nested_concats_are_one() -> None:
    b = Builder()
    inner = b.make(Concat, parts=(b.input(2, 3), b.input(2, 1)), axis=1)
    y = b.make(Concat, parts=(b.input(2, 2), inner), axis=1)
    assert ops_of(rewritten(simplify_concat, b, [y])) == ["Concat"]


def test_a_concat_with_another_reader_or_axis_stays() -> None:
    b = Builder()
    inner = b.make(Concat, parts=(b.input(2, 3), b.input(2, 1)), axis=1)
    across = b.make(Concat, parts=(inner, inner), axis=0)
    assert ops_of(rewritten(simplify_concat, b, [across])) == ["Concat", "Concat"]


@pytest.mark.parametrize(("cuts", "left"), [([(0, 2), (2, 3)], []), ([(0, 2), (2, 1)], ["Slice"])])
def test_neighbouring_slices_join(cuts: list[tuple[int, int]], left: list[str]) -> None:
    b = Builder()
    x = b.input(2, 5)
    y = b.make(Concat, parts=tuple(cut(b, x, *c) for c in cuts), axis=1)
    assert ops_of(rewritten(simplify_concat, b, [y])) == left


def test_slices_that_leave_a_gap_or_swap_stay() -> None:
    b = Builder()
    x = b.input(2, 5)
    gap = b.make(Concat, parts=(cut(b, x, 0, 2), cut(b, x, 3, 2)), axis=1)
    swap = b.make(Concat, parts=(cut(b, x, 3, 2), cut(b, x, 0, 3)), axis=1)
    assert ops_of(rewritten(simplify_concat, b, [gap, swap])).count("Slice") == 4


@given(st.integers(0, 2), st.sampled_from([1, 2]), st.integers(1, 3), st.sampled_from([1, -1]))
@moderate
def test_slices_of_slices_compose(start: int, step: int, size: int, direction: int) -> None:
    b = Builder()
    inner = cut(b, b.input(2, 9), start, 4, step=step)
    y = cut(b, inner, 0 if direction > 0 else size - 1, size, step=direction)
    assert ops_of(rewritten(simplify_slice, b, [y])) == ["Slice"]


@pytest.mark.parametrize(("start", "size", "kept"), [(0, 3, 1), (3, 2, 1), (4, 1, 1), (2, 2, 2)])
def test_a_slice_within_one_part_reads_that_part(start: int, size: int, kept: int) -> None:
    b = Builder()
    joined = b.make(Concat, parts=(b.input(2, 3), b.input(2, 2)), axis=1)
    assert len(ops_of(rewritten(simplify_slice, b, [cut(b, joined, start, size)]))) == kept
