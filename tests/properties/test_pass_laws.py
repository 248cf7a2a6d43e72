"""Every pass keeps the interpreter's result, and the optimizer leaves no layout behind."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Constant, Conv, HardSwish, Transpose
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.unary import Fusible
from quantglow.ir.ops.work import FEWEST_PRODUCTS
from quantglow.transforms import float as passes
from quantglow.transforms.float.fusion import fuse_float_activation
from quantglow.transforms.pass_manager import pass_name
from quantglow.transforms.rewrite import Pass, run_passes, single_passes
from tests.generators.float_graphs.layers import STEPS
from tests.generators.float_graphs.networks import networks
from tests.support.builder import Builder, assert_same_function, ops_of

EACH = single_passes(passes.FLOAT_PASSES)
NCHW_STEPS = tuple(name for name in STEPS if name not in ("masked", "swap"))
"""Steps without a preferred order of axes: a Softmax over columns needs them last."""


@given(graph=networks())
def test_optimize_keeps_the_function(graph: Graph) -> None:
    assert_same_function(graph, passes.optimize(graph))


@given(graph=networks(most=5), step=st.sampled_from(EACH))
def test_each_pass_alone_keeps_the_function(graph: Graph, step: Pass) -> None:
    assert_same_function(graph, run_passes(graph, [step]))


@given(graph=networks(), length=st.integers(1, len(passes.FLOAT_PASSES)))
def test_each_stage_keeps_the_function(graph: Graph, length: int) -> None:
    assert_same_function(graph, run_passes(graph, passes.FLOAT_PASSES[:length]))


@given(graph=networks(NCHW_STEPS, first=("conv",)))
def test_transposes_remain_only_at_image_inputs_and_outputs(graph: Graph) -> None:
    after = passes.optimize(graph)
    outputs = {node for _, node in after.outputs}
    inner = [
        node
        for node in after.nodes
        if isinstance(node, Transpose)
        and node.type.rank == 4  # a channel shuffle has rank 5
        and node not in outputs
        and not isinstance(node.x, Input)
    ]
    assert inner == []


@given(graph=networks())
def test_optimize_settles(graph: Graph) -> None:
    once = passes.optimize(graph)
    assert len(passes.optimize(once).nodes) == len(once.nodes)


@given(graph=networks())
def test_optimize_is_deterministic(graph: Graph) -> None:
    first, second = passes.optimize(graph), passes.optimize(graph)
    assert [n.name for n in first.nodes] == [n.name for n in second.nodes]


@pytest.mark.slow
@given(graph=networks())
def test_names_of_values_survive(graph: Graph) -> None:
    known = {node.name for node in graph.nodes}
    fresh = [
        node.name
        for node in passes.optimize(graph).compute_nodes()
        if not isinstance(node, Constant) and node.name not in known and ":" not in node.name
    ]
    assert fresh == []


@given(graph=networks(first=("scaled-hard-swish",)))
def test_float_sums_take_their_cheap_functions_along(graph: Graph) -> None:
    fused = fuse_float_activation(passes.optimize(graph))
    assert_same_function(graph, fused)
    apart = [node.x for node in fused.compute_nodes() if isinstance(node, Fusible)]
    sums = [x for x in apart if isinstance(x, Contraction) and x.is_bare]
    assert all(fused.use_counts[x] > 1 for x in sums)


@given(
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    channels=st.integers(1, 60),
    groups=st.integers(1, 3),
)
def test_functions_fuse_by_the_number_of_products(
    kernel: tuple[int, int], channels: int, groups: int
) -> None:
    b = Builder()
    x = b.input(1, 6, 6, groups * channels)
    w = b.drawn(*kernel, channels, 2 * groups)
    y = b.make(HardSwish, x=b.make(Conv, x=x, w=w, group=groups))
    optimized = ops_of(passes.optimize(Graph(tuple(b.inputs), (("y", y),))))
    fused = math.prod(kernel) * channels >= FEWEST_PRODUCTS
    assert ("HardSwish" in optimized) != fused


@pytest.mark.parametrize("step", EACH, ids=pass_name)
def test_a_pass_is_called_as_its_file(step: Pass) -> None:
    attribute = pass_name(step).replace("-", "_")
    assert getattr(passes, attribute, None) is not None
