"""Every function of scalar expressions, on every kind of value that it takes, on every target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Elementwise
from quantglow.ir.ops.expression import Expr, arg, call, iconst
from quantglow.ir.ops.functions import BINARY, ROW_FUNCTIONS, SELECT, UNARY, dtype_kind, result_kind
from quantglow.ir.types import DType, ElementType, TensorType
from quantglow.support.arrays import Array
from tests.generators.quantized_graphs.drawing import CHANNELS
from tests.matrix.harness import assert_targets_agree, in_turn
from tests.support.effort import expensive, moderate

DTYPES = {"f": DType.F32, "i": DType.I32, "l": DType.I64, "b": DType.BOOL}
RARE = (0, 1, -1, 2, -2, 7, -128, 127)
FLOATS = (np.nan, np.inf, -np.inf, -0.0, 0.5, -1.5, 2.5, 2.0**31, -(2.0**31), 2.0**63, 1e30, 1e-40)
WAVES = ("sin", "cos")
"""Functions of angles of any size; other float functions are compared on small values."""
ARITIES = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(BINARY, 2), SELECT: 3}
del ARITIES["int"]  # takes only values that fit; the quantizer's tests cover it
for name in ROW_FUNCTIONS:
    del ARITIES[name]  # RowMap only; test_llvm_rows has them


def signatures() -> list[tuple[str, str]]:
    """Every function with every combination of kinds that it takes."""
    collected = []
    for name, arity in ARITIES.items():
        for kinds in np.ndindex(*(4,) * arity):
            letters = "".join("filb"[k] for k in kinds)
            try:
                result_kind(name, tuple(letters))
            except TypeError:
                continue
            collected.append((name, letters))
    return collected


def parameters() -> Iterator[Any]:
    """All of them; slow but the first one of each function."""
    quick = dict(reversed(signatures()))
    for name, kinds in signatures():
        yield pytest.param(name, kinds, marks=() if kinds == quick[name] else pytest.mark.slow)


def drawn(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Values of every magnitude, the extremes among them."""
    if dtype is DType.BOOL:
        return rng.random(shape) < 0.5
    if dtype.is_float:
        values = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 6, shape)
        return np.where(rng.random(shape) < 0.3, rng.choice(FLOATS, shape), values).astype("f4")
    low, high = dtype.limits
    values = rng.integers(low, high, shape, dtype.numpy, endpoint=True)
    small = rng.choice([v for v in RARE if low <= v <= high], shape).astype(dtype.numpy)
    extremes = rng.choice(np.array([low, high], dtype.numpy), shape)
    return np.choose(rng.integers(0, 3, shape), [values, small, extremes])


def any_float(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """float32 values of every exponent, infinities and NaN among them."""
    return rng.integers(0, 2**32, shape, np.uint32).view(np.float32)


def graph_of(expression: Expr, dtypes: list[DType], shape: tuple[int, ...], out: DType) -> Graph:
    inputs = [Input(name=f"x{i}", tensor=TensorType(d, shape)) for i, d in enumerate(dtypes)]
    node = Elementwise(name="y", args=tuple(inputs), expression=expression, out=ElementType(out))
    return Graph(tuple(inputs), (("y", node),))


def assert_compiles(graph: Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    feeds = {node.name: drawn(rng, node.type.dtype, node.type.shape) for node in graph.inputs}
    if graph.outputs[0][1].expression.op in WAVES:
        feeds = {name: any_float(rng, array.shape) for name, array in feeds.items()}
    elif graph.outputs[0][1].type.dtype.is_float:
        # Huge values would hide all others in the tolerance, which is relative to the largest.
        feeds = {n: np.clip(f, -30, 30) if f.dtype == np.float32 else f for n, f in feeds.items()}
    if graph.outputs[0][1].expression.op == "expneg":
        feeds = {n: -np.abs(f) for n, f in feeds.items()}
    with np.errstate(all="ignore"):
        assert_targets_agree(graph, feeds, targets=in_turn(seed), rtol=1e-6)


@pytest.mark.parametrize(("name", "kinds"), [*parameters()])
@expensive
@given(size=st.sampled_from(CHANNELS), seed=st.integers(0, 999))
def test_every_function_is_compiled_as_defined(name: str, kinds: str, size: int, seed: int) -> None:
    expression = call(name, *(arg(i) for i in range(len(kinds))))
    dtypes = [DTYPES[kind] for kind in kinds]
    out = DTYPES[result_kind(name, tuple(kinds))]
    assert_compiles(graph_of(expression, dtypes, (2, size), out), seed)


@pytest.mark.parametrize("dtype", [d for d in DType if dtype_kind(d) == "i" and not d.is_object])
@moderate
@given(size=st.sampled_from(CHANNELS), seed=st.integers(0, 999))
def test_narrow_integers_are_widened_and_stored(dtype: DType, size: int, seed: int) -> None:
    low, high = dtype.limits
    within = call("imin", call("imax", call("iadd", arg(0), arg(1)), iconst(low)), iconst(high))
    assert_compiles(graph_of(within, [dtype, dtype], (size,), dtype), seed)
