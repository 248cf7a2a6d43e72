"""Loops of free length: one program serves all, with the bytes of programs of their own."""

from __future__ import annotations

import pytest

from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Add, Concat, Loop, Slice, Tanh
from quantglow.ir.types import f32
from tests.matrix.general import LEVELS, Sizes, assert_serves
from tests.support.builder import Builder


def both_ways(sizes: Sizes) -> Graph:
    """A recurrence over T rows, forwards and backwards, side by side."""
    b, steps = Builder(), sizes["T"]
    x = b.input(steps, 1, 24)
    ends = Slice(name=b.name(), x=x, starts=(steps - 1, 0, 0), sizes=x.type.shape, steps=(-1, 1, 1))
    results = []
    for rows in (x, ends):
        state, element = (Input(name=b.name("inner"), tensor=f32(1, 24)) for _ in range(2))
        after = b.make(Tanh, x=b.make(Add, x=b.gemm(state, 24), y=element))
        fields = {"carried": (b.drawn(1, 24),), "sliced": (rows,), "captured": ()}
        body = Graph((state, element), ((after.name, after), (after.name, after)))
        for output in range(2):
            results.append(b.make(Loop, **fields, body=body, trips=steps, output=output))
    beside = b.make(Concat, parts=(results[1], results[3]), axis=2)
    return b.graph(beside, results[0], b.make(Tanh, x=results[2]))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("target", LEVELS)
def test_recurrence(target: str, threads: int) -> None:
    others = [{"T": t} for t in (2, 16, 131, 1000)]
    assert_serves(both_ways, {"T": 37}, others, resolve(target), threads)
