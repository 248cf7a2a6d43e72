"""Kernels of other processors, in plain LLVM IR, give the interpreter's integers on any machine."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.codegen.llvm.kernels.conv.pair_products import BlockConvKernel
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Conv
from quantglow.ir.types import DType
from quantglow.runtime.native.compilation import compile_program
from tests.generators.quantized_graphs.convolutions import Case, cases, floats, integers
from tests.generators.quantized_graphs.graphs import mixed_graphs
from tests.matrix.harness import assert_agree, planned, run_backwards
from tests.matrix.plain_ir.translation import FAMILIES, plain
from tests.support.combinations import covering, mark_slow
from tests.support.effort import moderate
from tests.support.feeds import feeds_of
from tests.support.pinned import NAMES, digest, hashes, pinned
from tests.support.pinned import feeds_of as pinned_feeds

DAILY = {"dotprod", "rv64gcv", "wasm32", "cortex-m4"}
SETS = {x.isa: x.name for family in FAMILIES.values() for x in family.levels}
LEVELS = [
    pytest.param(name, marks=[] if name in DAILY else pytest.mark.slow) for name in SETS.values()
]
"""One level for each set of instructions; one for each family by default."""


@pytest.mark.slow_variants
@pytest.mark.parametrize("level", mark_slow(SETS.values(), {"dotprod", "cortex-m4"}))
@moderate
@given(case=st.one_of(cases(), cases(depthwise=True), cases(wide=True)))
def test_integer_conv_equals_the_interpreter(level: str, case: Case) -> None:
    graph, feeds = integers(case)
    assert_agree(graph, feeds, plain(level), threads=1 + case.seed % 2)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels", [6, 10, 14])
def test_half_a_vector_of_channels_belongs_to_one_pixel(level: str, channels: int) -> None:
    """Operands hold one pixel each, so no two pixels share a vector of sums."""
    graph, feeds = integers(pointwise(channels))
    assert_agree(graph, feeds, plain(level))


def pointwise(channels: int) -> Case:
    """A convolution of 16 channels at three pixels."""
    ones, same, wide = (1, 1), (DType.I8,) * 3, (-math.inf, math.inf)
    return Case(
        1, 1, 3, 1, 16, channels, ones, ones, ones, (0,) * 4, False, False, (3, -5), same, wide, 1
    )


@pytest.mark.slow_variants
@pytest.mark.parametrize("level", mark_slow(SETS.values(), {"rv64gcv", "wasm32"}))
@moderate
@given(case=cases())
def test_float_conv_is_near_the_interpreter(level: str, case: Case) -> None:
    graph, feeds = floats(case)
    assert_agree(graph, feeds, plain(level))


@pytest.mark.slow_variants
@pytest.mark.parametrize("level", mark_slow(SETS.values(), {"dotprod", "wasm32"}))
@moderate
@given(graph=mixed_graphs(), seed=st.integers(0, 2**16))
def test_graphs_of_all_operators_give_the_same_integers(
    level: str, graph: Graph, seed: int
) -> None:
    assert_agree(graph, feeds_of(graph, seed), plain(level))


@pytest.mark.slow_variants
@pytest.mark.parametrize("level", mark_slow(SETS.values(), {"rv64gcv", "cortex-m4"}))
@moderate
@given(case=cases())
def test_items_of_a_convolution_need_each_other_not(level: str, case: Case) -> None:
    graph, feeds = integers(case)
    program = planned(graph, unsigned=False)
    executable = compile_program(*program, plain(level))
    (want,), (got,) = interpret(graph, feeds), run_backwards(executable, feeds)
    np.testing.assert_array_equal(got, want)


@pytest.mark.slow_variants(2)
@pytest.mark.parametrize(("name", "level"), covering(NAMES, [*SETS.values()]))
def test_saved_networks_give_the_pinned_integers(name: str, level: str) -> None:
    graph, (seed, expected) = pinned(name), hashes()[name]
    executable = compile_program(*planned(graph, unsigned=False), plain(level))
    assert digest([executable.run(feeds) for feeds in pinned_feeds(graph, seed)]) == expected


def test_blocks_are_taken_where_there_are_several_pixels() -> None:
    graph = pinned("residual")
    program, _ = planned(graph, unsigned=False)
    convs = [s for s in program.instructions if isinstance(getattr(s, "op", None), Conv)]
    assert any(BlockConvKernel(step, step.op, plain("i8mm")).applies for step in convs)
