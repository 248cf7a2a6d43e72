"""General programs of reductions: axes of free sizes, reduced or kept."""

from __future__ import annotations

import pytest

from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import ReduceMax, ReduceMean, ReduceMin, ReduceSum
from quantglow.ir.types import DType, ElementType
from tests.generators.quantized_graphs.convolutions import element, tensor
from tests.matrix.general import LEVELS, Make, Sizes, assert_serves
from tests.matrix.harness import TARGETS
from tests.support.combinations import covering

HINT = {"N": 3, "H": 11, "W": 38}
OTHERS = [
    {"N": n, "H": h, "W": w}
    for n, h, w in ((2, 7, 9), (5, 16, 17), (2, 31, 64), (3, 6, 97), (2, 40, 130))
]
AXES = [(1, 2), (2,), (3,), (1,), (1, 2, 3)]
CHANNELS = [5, 24, 96]
FLOAT = ElementType(DType.F32)


def reduction(op: type[Node], axes: tuple[int, ...], channels: int, integer: bool) -> Make:
    """A reduction of images."""
    kind = element(DType.I8, 0.05, -3) if integer else FLOAT
    fields = {"out": element(DType.I8, 0.02, 7)} if integer and op is ReduceMean else {}

    def make(sizes: Sizes) -> Graph:
        x = tensor("x", (sizes["N"], sizes["H"], sizes["W"], channels), kind)
        return Graph((x,), (("y", op(name="y", x=x, axes=axes, **fields)),))

    return make


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("axes", "integer", "target"), covering(AXES, [False, True], TARGETS), ids=str
)
def test_mean(axes: tuple[int, ...], integer: bool, target: str) -> None:
    for channels in CHANNELS:
        make = reduction(ReduceMean, axes, channels, integer)
        assert_serves(make, HINT, OTHERS, resolve(target))


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize(("op", "integer"), [(ReduceMax, True), (ReduceMin, False)])
@pytest.mark.parametrize("axes", [(1, 2), (2, 3)], ids=str)
def test_extreme(op: type[Node], integer: bool, axes: tuple[int, ...], target: str) -> None:
    assert_serves(reduction(op, axes, 24, integer), HINT, OTHERS, resolve(target))


@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("axes", [(0,), (0, 1)], ids=str)
def test_sum_of_free_columns(axes: tuple[int, ...], target: str) -> None:
    assert_serves(reduction(ReduceSum, axes, 7, False), HINT, OTHERS, resolve(target))


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("integer", [False, True])
def test_rows_of_any_length(integer: bool, target: str) -> None:
    """One axis, from rows shorter than a vector on."""
    kind = element(DType.I8, 0.05, -3) if integer else FLOAT
    fields = {"out": element(DType.I8, 0.02, 7)} if integer else {}

    def make(sizes: Sizes) -> Graph:
        x = tensor("x", (sizes["N"], sizes["T"]), kind)
        return Graph((x,), (("y", ReduceMean(name="y", x=x, axes=(1,), **fields)),))

    others = [{"N": 2, "T": t} for t in (*range(3, 20), 31, 33, 63, 65, 255, 256, 257, 1031)]
    assert_serves(make, {"N": 3, "T": 77}, others, resolve(target))


@pytest.mark.parametrize("integer", [False, True])
def test_threads(integer: bool) -> None:
    make = reduction(ReduceMean, (1, 2), 96, integer)
    assert_serves(make, HINT, OTHERS[:2], resolve(TARGETS[0]), threads=2)


@pytest.mark.parametrize("target", LEVELS)
def test_mean_of_a_free_multiple_of_known_rows(target: str) -> None:
    """No row is left over by rows of four columns, whatever their number."""

    def make(sizes: Sizes) -> Graph:
        shape = (sizes["N"], sizes["H"], 4, sizes["W"])
        x = tensor("x", shape, element(DType.I8, 0.05, -3))
        mean = ReduceMean(name="y", x=x, axes=(1, 2), out=element(DType.I8, 0.02, 7))
        return Graph((x,), (("y", mean),))

    assert_serves(make, HINT, OTHERS, resolve(target))
