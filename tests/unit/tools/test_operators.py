"""The int8 column of the README's table, on cases drawn here; the whole: tests/e2e."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Gemm
from quantglow.ir.types import DType, TensorType
from tools import operators

Array = NDArray[np.float32]

RNG = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


CASES: dict[str, tuple[list[Array], dict[str, Any], str]] = {
    "Sqrt": ([abs(normal(4, 6)) + 0.1], {}, "-"),
    "Sigmoid": ([normal(4, 6)], {}, "yes"),
    "Mul": ([normal(4, 6), normal(4, 6)], {}, "yes"),
    "Conv": ([normal(1, 3, 8, 8), normal(4, 3, 3, 3)], {}, "yes"),
    "MaxPool": ([normal(1, 3, 8, 8)], {"kernel_shape": [2, 2]}, "yes"),
    "LpPool": ([normal(1, 3, 8, 8)], {"kernel_shape": [2, 2]}, "some"),
    "LayerNormalization": ([normal(4, 8), 1 + normal(8), normal(8)], {}, "some"),
    "GRU": ([normal(3, 1, 4), normal(1, 15, 4), normal(1, 15, 5)], {"hidden_size": 5}, "some"),
    "LSTM": ([normal(3, 1, 4), normal(1, 20, 4), normal(1, 20, 5)], {"hidden_size": 5}, "some"),
    "LogSoftmax": ([normal(4, 6)], {}, "-"),
    "ReduceSum": ([normal(4, 6)], {}, "-"),
}
"""Operator -> operands, attributes, int8 column."""


def form(op_type: str) -> operators.Form:
    """A model of one node, as ONNX's tests have it."""
    arrays, attributes, _ = CASES[op_type]
    names = [f"x{i}" for i in range(len(arrays))]
    node = helper.make_node(op_type, names, ["y"], name="own", **attributes)
    typed = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
        for name, array in zip(names, arrays, strict=True)
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "case", typed, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return operators.tried(SimpleNamespace(model=model, data_sets=[(arrays, [])]))


def in_readme(op_type: str) -> str:
    """The int8 column of its row."""
    section = operators.PAGE.read_text().split(operators.BEGIN)[1].split(operators.END)[0]
    rows = [re.split(r" *\| *", line.strip("| ")) for line in section.splitlines() if "|" in line]
    (int8,) = [row[2] for row in rows if op_type in row[0].split(", ")]
    return int8


@pytest.mark.parametrize("op_type", CASES)
def test_operators_that_quantizing_leaves_in_int8(op_type: str) -> None:
    assert operators.joined(op_type, [form(op_type)]).int8 == CASES[op_type][2]


@pytest.mark.parametrize("op_type", CASES)
def test_the_page_says_so(op_type: str) -> None:
    assert in_readme(op_type) == CASES[op_type][2]


def test_long_rows_get_no_large_matrix() -> None:
    row = Input(name="x", tensor=TensorType(DType.F32, (10_000,)))
    product = operators.product(row, "before").operands[0]
    assert isinstance(product, Gemm)
    assert product.w.type.shape == (16, 16)
