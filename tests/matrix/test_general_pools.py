"""General programs of pools: images of any number and size, with pads."""

from __future__ import annotations

import pytest

from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import AveragePool, MaxPool
from quantglow.ir.types import DType, ElementType
from tests.generators.quantized_graphs.convolutions import element, tensor
from tests.matrix.general import Make, Sizes, assert_serves
from tests.matrix.harness import TARGETS
from tests.support.combinations import covering

HINT = {"N": 2, "H": 21, "W": 38}
OTHERS = [
    {"N": n, "H": h, "W": w}
    for n, h, w in ((3, 5, 7), (2, 16, 17), (5, 31, 32), (2, 9, 67), (4, 64, 40))
]
CASES = [
    # channels, kernel, strides, pads, dilations, ceil mode
    (24, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), False),
    (24, (2, 2), (2, 2), (0, 0, 0, 0), (1, 1), True),
    (65, (3, 2), (1, 1), (1, 0, 1, 1), (1, 1), False),
    (16, (1, 3), (1, 1), (0, 0, 0, 0), (1, 1), False),
    (1, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), False),
    (8, (5, 3), (2, 1), (3, 2, 1, 2), (2, 2), True),
    (8, (8, 8), (4, 4), (3, 3, 4, 4), (1, 1), True),
]


def pool(op: type, case: tuple, integer: bool, **fields: object) -> Make:
    channels, kernel, strides, pads, dilations, ceil_mode = case
    kind = element(DType.I8, 0.05, -3) if integer else ElementType(DType.F32)

    def make(sizes: Sizes) -> Graph:
        x = tensor("x", (sizes["N"], sizes["H"], sizes["W"], channels), kind)
        shape = {"kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations}
        y = op(name="y", x=x, ceil_mode=ceil_mode, **shape, **fields)
        return Graph((x,), (("y", y),))

    return make


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("case", "integer", "target"), covering(CASES, [False, True], TARGETS), ids=str
)
def test_maximum(case: tuple, integer: bool, target: str) -> None:
    others = OTHERS if case[4] == (1, 1) else OTHERS[1:]
    assert_serves(pool(MaxPool, case, integer), HINT, others, resolve(target))


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("case", "integer", "target"), covering(CASES, [False, True], TARGETS), ids=str
)
def test_average(case: tuple, integer: bool, target: str) -> None:
    others = OTHERS if case[4] == (1, 1) else OTHERS[1:]
    out = element(DType.I8, 0.07, 9) if integer else None
    for padded in (False, True):
        make = pool(AveragePool, case, integer, count_include_pad=padded, out=out)
        assert_serves(make, HINT, others, resolve(target))


@pytest.mark.parametrize("integer", [False, True])
def test_threads(integer: bool) -> None:
    make = pool(MaxPool, CASES[0], integer)
    assert_serves(make, HINT, OTHERS[:2], resolve(TARGETS[0]), threads=2)


def test_one_free_axis() -> None:
    """Rows of a free length of images of a fixed height."""

    def make(sizes: Sizes) -> Graph:
        return pool(MaxPool, CASES[0], True)({"N": 1, "H": 8, **sizes})

    assert_serves(make, {"W": 38}, [{"W": w} for w in (3, 16, 101)], resolve(TARGETS[0]))


@pytest.mark.parametrize("op", [MaxPool, AveragePool])
def test_free_height(op: type) -> None:
    """Images of a free height and a fixed width."""
    fields = {} if op is MaxPool else {"out": element(DType.I8, 0.07, 9)}

    def make(sizes: Sizes) -> Graph:
        return pool(op, CASES[0], True, **fields)({"N": 1, "W": 13, **sizes})

    assert_serves(make, {"H": 38}, [{"H": h} for h in (4, 16, 101)], resolve(TARGETS[0]))
