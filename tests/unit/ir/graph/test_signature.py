"""The first dimension of inputs counts samples, unless outputs say that it is another axis."""

from __future__ import annotations

import pytest

from quantglow.ir.graph.signature import Port, PortDim, Signature
from quantglow.ir.types import DType

Dims = tuple[PortDim, ...] | None


def signature(inputs: list[Dims], outputs: list[Dims]) -> Signature:
    ports = ([Port(str(i), DType.F32, dims) for i, dims in enumerate(e)] for e in (inputs, outputs))
    return Signature(*map(tuple, ports))


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([("N", 3)], [("N", 10)]),
        ([("N", 3), ("N", "T")], [("N", "T"), (10,)]),
        ([("N", 3)], [("M", 10), None]),
        ([(None, 3)], [("N", 10)]),
        ([("N", 3)], [(1, 10)]),
        ([("N", 3)], [(10,), ()]),
    ],
)
def test_a_batch(inputs: list[Dims], outputs: list[Dims]) -> None:
    assert signature(inputs, outputs).has_free_batch


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([("T", "N", 8)], [("T", "N", 8), (1, "N", 8)]),
        ([("T", "N", 8)], [("N", 10)]),
        ([("N", 3), ("M", 3)], [("N", 10)]),
        ([("N", 3), ("N", "N")], [("N", 10)]),
        ([("N", "N")], [None]),
        ([("N", 3)], [("N", "N")]),
        ([(2, 3)], [(2, 10)]),
    ],
)
def test_no_batch(inputs: list[Dims], outputs: list[Dims]) -> None:
    assert not signature(inputs, outputs).has_free_batch
