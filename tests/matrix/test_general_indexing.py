"""Rows that are chosen by indices, where their numbers and lengths are free."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.family import Case
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Gather, Scatter, TopK
from quantglow.ir.types import DType, TensorType
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.support.errors import OutOfRangeError
from tests.matrix.general import LEVELS, Make, Sizes, assert_serves, general
from tests.matrix.harness import TARGETS
from tests.support.builder import Builder

HINT = {"N": 3, "T": 37}
OTHERS = [{"N": n, "T": t} for n, t in ((2, 7), (5, 8), (2, 17), (3, 64), (2, 131))]
ROWS = 128
"""More than any index that is drawn."""


def indices(*shape: int) -> Input:
    return Input(name="indices", tensor=TensorType(DType.I64, shape))


def embedding(sizes: Sizes) -> Graph:
    """A table of fixed rows, chosen for each word; and one whose rows have a free length."""
    b = Builder()
    words = indices(sizes["N"], sizes["T"])
    fixed = b.make(Gather, x=b.drawn(ROWS, 48), indices=words, axis=0)
    x = b.input(2, ROWS, sizes["T"])
    free = b.make(Gather, x=x, indices=words, axis=1)
    return Graph((words, x), (("fixed", fixed), ("free", free)))


def scatter(sizes: Sizes) -> Graph:
    b = Builder()
    x, updates = b.input(ROWS, sizes["T"]), b.input(sizes["N"], sizes["T"])
    at = indices(sizes["N"])
    built = [
        (name, b.make(Scatter, x=x, indices=at, updates=updates, reduction=name))
        for name in ("none", "add", "max")
    ]
    return Graph((x, updates, at), tuple(built))


def top_k(sizes: Sizes) -> Graph:
    b = Builder()
    x = b.input(sizes["N"], sizes["T"])
    return b.graph(b.make(TopK, x=x, k=5))


@pytest.mark.parametrize("reached", [40, 63])
def test_an_index_that_is_out_of_range_at_one_shape_is_named_with_the_length(reached: int) -> None:
    def rows(sizes: Sizes) -> Graph:
        b = Builder()
        x, at = b.input(sizes["T"], 8), indices(sizes["N"])
        return Graph((x, at), (("y", b.make(Gather, x=x, indices=at, axis=0)),))

    program = general(rows, HINT, resolve(TARGETS[0]))
    feeds = {"input1": np.zeros((reached, 8), np.float32), "indices": np.array([3, reached])}
    values = program.values_at(Case.fitting(feeds))
    assert values is not None
    actual = LlvmExecutable.of(program.loaded, values)
    with pytest.raises(OutOfRangeError, match=f"index {reached} .* length {reached}"):
        actual.run(feeds)


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("make", [embedding, scatter, top_k], ids=lambda make: make.__name__)
def test_indexing(make: Make, target: str) -> None:
    assert_serves(make, HINT, OTHERS, resolve(target))
