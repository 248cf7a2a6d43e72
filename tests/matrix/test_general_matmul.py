"""Products of free batches, rows, columns and depths."""

from __future__ import annotations

from functools import partial

import pytest

from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import MatMul, Transpose
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from tests.matrix.general import Sizes, assert_serves
from tests.matrix.harness import TARGETS
from tests.support.combinations import covering

LARGE = {"N": 3, "T": 37}
LARGER = [
    {"N": n, "T": t} for n, t in ((2, 16), (5, 17), (2, 31), (2, 48), (3, 63), (2, 64), (4, 131))
]
SMALL, SMALLER = {"N": 3, "T": 7}, [{"N": 2, "T": 4}, {"N": 5, "T": 6}]
BYTES, WORDS = QuantParams.per_tensor(0.05, 3), QuantParams.per_tensor(0.05, 0)


def product(kind: str, dtype: DType, result: DType | None, sizes: Sizes) -> Graph:
    """A product of two inputs of shapes by ``kind``."""
    params = None if dtype.is_float else BYTES if dtype is DType.I8 else WORDS
    x, y = (
        Input(name=name, tensor=TensorType(dtype, shape, params))
        for name, shape in zip("xy", shapes(kind, sizes["N"], sizes["T"]), strict=True)
    )
    out = None if result is None else ElementType(result, QuantParams.per_tensor(0.7, -5))
    right = Transpose(name="turned", x=y, perm=(0, 2, 1)) if kind.endswith("keys") else y
    return Graph((x, y), (("out", MatMul(name="m", x=x, y=right, out=out)),))


def shapes(kind: str, n: int, t: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Scores of attention, by keys as they lie, too; values weighted by probabilities; the same for
    the next word alone; and rows times one matrix."""
    match kind:
        case "scores":
            return (n, t, 24), (n, 24, t)
        case "keys":
            return (n, t, 21), (n, t, 21)
        case "next keys":
            return (n, 1, 21), (n, t, 21)
        case "weighted":
            return (n, t, t), (n, t, 24)
        case "next scores":
            return (n, 1, 24), (n, 24, t)
        case "next weighted":
            return (n, 1, t), (n, t, 24)
    return (n, t, 21), (1, 21, 40)


KINDS = ("scores", "keys", "weighted", "next scores", "next keys", "next weighted", "rows")
TYPES = ((DType.F32, None), (DType.I8, DType.I8), (DType.I8, None), (DType.I16, None))


@pytest.mark.slow_variants
@pytest.mark.parametrize(("kind", "types", "target"), covering(KINDS, TYPES, TARGETS))
def test_products(kind: str, types: tuple[DType, DType | None], target: str) -> None:
    make = partial(product, kind, *types)
    assert_serves(make, LARGE, LARGER, resolve(target))
    assert_serves(make, SMALL, SMALLER, resolve(target))


def test_products_on_two_threads() -> None:
    make = partial(product, "scores", DType.I8, DType.I8)
    assert_serves(make, LARGE, LARGER[-1:], resolve(TARGETS[0]), threads=2)
