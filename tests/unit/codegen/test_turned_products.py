"""Products with matrices whose columns lie as rows: no copy, and the same sums."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import quantglow as qg
from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Input, MatMul, Transpose
from quantglow.ir.program.program import Copy
from quantglow.ir.types import f32
from quantglow.memory.planning import plan_program
from quantglow.memory.plans import PlannedProgram
from quantglow.runtime.native.compilation import compile_program
from quantglow.transforms.program import generate

SIZES = [(4, 3, 64, 101), (1, 1, 16, 16), (2, 9, 5, 3), (1, 8, 70, 48), (2, 17, 33, 200)]
"""Batch, rows, depth, columns."""


def program(sizes: tuple[int, ...], level: str) -> PlannedProgram:
    batch, rows, depth, columns = sizes
    x = Input(name="x", tensor=f32(batch, rows, depth))
    y = Input(name="y", tensor=f32(batch, columns, depth))
    turned = Transpose(name="turned", x=y, perm=(0, 2, 1))
    graph = Graph((x, y), (("z", MatMul(name="z", x=x, y=turned)),))
    return plan_program(graph, resolve(level))


def outputs(sizes: tuple[int, ...], level: str) -> np.ndarray:
    batch, rows, depth, columns = sizes
    built_program = program(sizes, level)
    executable = compile_program(built_program.program, built_program.plan, resolve(level), 2)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, rows, depth), np.float32)
    y = rng.standard_normal((batch, columns, depth), np.float32)
    return executable.run({"x": x, "y": y})[0]


@pytest.mark.parametrize("level", ["native", "x86-64", "portable"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sums_are_those_of_a_copy(
    sizes: tuple[int, ...], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = outputs(sizes, level)
    monkeypatch.setattr(generate, "MOST_TURNED", 0)
    np.testing.assert_array_equal(results, outputs(sizes, level))


@pytest.mark.parametrize(("depth", "copies"), [(256, 0), (257, 1)])
def test_columns_that_are_not_long_are_not_copied(depth: int, copies: int) -> None:
    steps = program((1, 2, depth, 40), "native").program.instructions
    assert sum(isinstance(step, Copy) for step in steps) == copies


def test_any_number_of_columns() -> None:
    names = {"x": [3, 4, 24], "y": [3, "N", 24], "z": [3, 4, "N"]}
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in names.items()]
    nodes = [
        helper.make_node("Transpose", ["y"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "turned"], ["z"]),
    ]
    graph = helper.make_graph(nodes, "g", infos[:2], infos[2:])
    opsets = [helper.make_opsetid("", 17)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    compiled, rng = qg.compile(model, num_threads=1), np.random.default_rng(0)
    for columns in (1, 2, 3, 15, 16, 17, 47, 48, 50, 97):
        x, y = (rng.standard_normal((3, n, 24), np.float32) for n in (4, columns))
        results = compiled.run(None, {"x": x, "y": y})[0]
        expected = x.astype(np.float64) @ y.transpose(0, 2, 1)
        np.testing.assert_allclose(results, expected, atol=1e-4)
