"""Rows read backwards, by copies and by element-wise kernels, on every target."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops import Concat, Elementwise, Slice
from quantglow.ir.ops.expression import arg, call
from quantglow.ir.types import DType, ElementType, TensorType
from tests.matrix.harness import assert_targets_agree, guarded_feeds, in_turn
from tests.support.combinations import mark_slow
from tests.support.effort import moderate

SUMS = {DType.F32: "add", DType.I32: "iadd", DType.I64: "iadd"}


@pytest.mark.parametrize(
    "dtype",
    mark_slow([DType.F32, DType.I32, DType.I64, DType.I16, DType.BOOL], {DType.F32, DType.BOOL}),
)
@moderate
@given(rows=st.integers(1, 3), length=st.integers(1, 70), first=st.integers(0, 3))
def test_backwards(dtype: DType, rows: int, length: int, first: int) -> None:
    x = Input(name="x", tensor=TensorType(dtype, (rows, length + first)))
    starts, sizes = (0, length + first - 1), (rows, length)
    back: Node = Slice(name="back", x=x, starts=starts, sizes=sizes, steps=(1, -1))
    outputs: list[tuple[str, Node]] = [("copied", Concat(name="c", parts=(back, back), axis=0))]
    if dtype in SUMS:
        other = Slice(name="other", x=x, starts=(0, first), sizes=sizes, steps=(1, 1))
        added = call(SUMS[dtype], arg(0), arg(1))
        args, out = (other, back), ElementType(dtype)
        outputs.append(("sum", Elementwise(name="s", args=args, expression=added, out=out)))
    graph = Graph((x,), tuple(outputs))
    assert_targets_agree(graph, guarded_feeds(graph, seed=length), targets=in_turn(length))
