"""Convolutions in pieces without padding: the same integers from fewer products."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from quantglow.ir.ops import Concat, Conv
from quantglow.transforms.lowering import lower
from quantglow.transforms.lowering.trimming import MOST_PIECES, result_ranges, split_by_padding
from quantglow.transforms.split_batch import split_batch
from tests.generators.quantized_graphs.convolutions import Case, floats, integers
from tests.support.effort import moderate
from tests.support.equality import assert_equal_values


def wide(size: int, dilation: int, kernel: int = 3, channels: int = 2) -> Case:
    """A convolution of a square image that keeps its size, as in DeepLab."""
    return Case(
        n=1,
        h=size,
        w=size,
        group=1,
        c_group=channels,
        o_group=3,
        kernel=(kernel, kernel),
        strides=(1, 1),
        dilations=(dilation, dilation),
        pads=(dilation * (kernel // 2),) * 4,
        seed=size,
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Images and dilations of any size, with other numbers of rows than of columns."""
    kernel, dilations = (draw(st.tuples(st.integers(1, k), st.integers(1, k))) for k in (5, 20))
    reach = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
    pads = draw(st.tuples(*(st.integers(0, r) for r in (*reach, *reach))))
    h, w = draw(st.tuples(st.integers(12, 40), st.integers(12, 40)))
    assume(h + pads[0] + pads[2] > reach[0] and w + pads[1] + pads[3] > reach[1])
    strides = draw(st.sampled_from([(1, 1), (1, 1), (1, 2), (2, 1)]))
    flags = draw(st.tuples(st.booleans(), st.booleans()))
    case = replace(wide(h, 1), w=w, kernel=kernel, dilations=dilations, pads=pads, strides=strides)
    return replace(case, n=draw(st.integers(1, 2)), residual=flags[0], float_result=flags[1])


@moderate
@given(cases())
def test_the_integers_stay(case: Case) -> None:
    graph, feeds = integers(case)
    split = split_by_padding(graph)
    split.verify()
    assert split_by_padding(split) is split
    assert_equal_values(interpret(split, feeds), interpret(graph, feeds))


def convolutions(graph: Graph) -> list[Conv]:
    return [node for node in graph.nodes if isinstance(node, Conv)]


def products(graph: Graph) -> int:
    """Products of all convolutions, for each pair of channels."""
    return sum(math.prod((*c.w.type.shape[:2], *c.type.shape[1:3])) for c in convolutions(graph))


@pytest.mark.parametrize(
    ("size", "dilation", "count", "share"),
    [(33, 24, 9, 0.27), (33, 12, 9, 0.58), (65, 36, 9, 0.4), (33, 2, 1, 1.0), (11, 4, 1, 1.0)],
)
def test_pieces_leave_out_products_of_padding(
    size: int, dilation: int, count: int, share: float
) -> None:
    graph, _ = integers(wide(size, dilation))
    split = split_by_padding(graph)
    assert len(convolutions(split)) == count
    assert products(split) == pytest.approx(share * products(graph), abs=0.01 * products(graph))
    assert all(not any(conv.pads) for conv in convolutions(split)) or count == 1


def test_pieces_are_those_whose_results_see_the_same_taps() -> None:
    ((_, conv),) = integers(wide(33, 24))[0].outputs
    assert isinstance(conv, Conv)
    actual = [
        (piece.begin, piece.length, piece.first, piece.taps) for piece in result_ranges(conv, 0)
    ]
    assert actual == [(0, 9, 1, 2), (9, 15, 1, 1), (24, 9, 0, 2)]


@pytest.mark.parametrize(
    "case",
    [
        replace(wide(33, 24), group=2, c_group=1, o_group=1),
        replace(wide(33, 24), pads=(0, 0, 24, 24), h=60, w=60, kernel=(1, 1)),
        wide(40, 6, kernel=MOST_PIECES + 2),
    ],
)
def test_others_stay_whole(case: Case) -> None:
    """Depthwise ones, results that see only padding, and many pieces."""
    graph, _ = integers(case)
    assert split_by_padding(graph) is graph


def test_a_convolution_of_infinite_weights_stays() -> None:
    graph, _ = floats(wide(33, 24))
    ((name, conv),) = graph.outputs
    assert isinstance(conv, Conv) and isinstance(conv.w, Constant)
    weights = np.full_like(conv.w.value, np.inf)
    graph = replace(graph, outputs=((name, replace(conv, w=replace(conv.w, value=weights))),))
    assert split_by_padding(graph) is graph


def test_small_programs_store_weights_once() -> None:
    graph, _ = integers(wide(33, 24))
    assert len(convolutions(lower(graph, small=True))) == 1
    assert len(convolutions(lower(graph))) == 9


def test_a_batch_of_pieces_is_cut_as_any_other() -> None:
    graph, feeds = integers(replace(wide(33, 24), n=4))
    split = split_by_padding(graph)
    half = split_batch(split, 2)
    assert half is not None and isinstance(half.outputs[0][1], Concat)
    parts = [interpret(half, {"x": feeds["x"][at : at + 2]})[0] for at in (0, 2)]
    assert_equal_values([np.concatenate(parts)], interpret(graph, feeds))
