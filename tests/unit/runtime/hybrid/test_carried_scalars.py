"""Values that late loops carry and stack keep their ranks; loops may be in their bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, parser

import quantglow as qg
from tests.unit.importer.onnx.onnx_models import by_onnxruntime

HEAD = '<ir_version: 9, opset_import: ["" : 17]> g'
KINDS = {"float": np.float32, "int64": np.int64, "int32": np.int32}
RANKS = {"": (), "[1]": (1,), "[2]": (2,)}


def scalar_loop(kind: str, dims: str) -> ModelProto:
    """A loop that carries ``k``, captures ``d`` and stacks both beside rows."""
    value = f"{kind}{dims}"
    return parser.parse_model(f"""{HEAD}
    (float[2,3] x, {value} k0, {value} d, int64 n) =>
    (float[2,3] y, {value} k, float[A,2,3] rows, {value} ks) <bool t={{1}}> {{
     y, k, rows, ks = Loop(n, t, x, k0) <body = b (int64 i, bool c, float[2,3] v, {value} ki) =>
     (bool co, float[2,3] vo, {value} ko, float[2,3] row, {value} kr)
     {{ vo = Tanh(v) ko = Add(ki, d) limit = Constant<value_int = 5>() co = Less(i, limit)
        row = Neg(vo) kr = Sub(ki, d) }}>
    }}""")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dims", RANKS)
def test_carried_values_keep_their_ranks(kind: str, dims: str) -> None:
    built, shape = scalar_loop(kind, dims), RANKS[dims]
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    values = {"k0": np.full(shape, 3, KINDS[kind]), "d": np.full(shape, 2, KINDS[kind])}
    compiled = qg.compile(built, num_threads=1)
    assert isinstance(compiled, qg.CompiledModel)
    for trips in (1, 4, 9):
        feeds = {"x": x, **values, "n": np.array(trips)}
        assert_close(compiled.run(None, feeds), by_onnxruntime(built, feeds), 1e-5)


BODIES = {
    "a function": "vo = Tanh(v)",
    "a loop behind its loop": """three = Constant<value_int = 3>()
     u, rows = Loop(three, c, v) <body = b2 (int64 j, bool cj, float[2,2] w) =>
     (bool co2, float[2,2] w2, float[2,2] z)
     { w2 = Sigmoid(w) l2 = Constant<value_int = 2>() co2 = Less(j, l2) z = Exp(w) }>
     vo = Tanh(u)""",
}


@pytest.mark.parametrize("body", BODIES)
def test_a_loop_may_be_in_the_body_of_a_late_one(body: str) -> None:
    built = parser.parse_model(f"""{HEAD}
    (float[2,2] x, int64 n) => (float[2,2] y, float[A,2,2] s) <bool t={{1}}> {{
     y, s = Loop(n, t, x) <body = b (int64 i, bool c, float[2,2] v) =>
     (bool co, float[2,2] vo, float[2,2] q)
     {{ {BODIES[body]} limit = Constant<value_int = 3>() co = Less(i, limit) q = Neg(v) }}>
    }}""")
    feeds = {"x": np.float32([[0.5, -1], [2, 0.25]]), "n": np.array(5)}
    for compiled in (
        qg.compile(built, num_threads=1),
        qg.quantize_and_compile(built, [feeds], num_threads=1, verify=False, progress=False),
    ):
        assert_close(compiled.run(None, feeds), by_onnxruntime(built, feeds), 0.1)


def assert_close(actual: Any, expected: Any, tolerance: float) -> None:
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, strict=True)
