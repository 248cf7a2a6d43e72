"""Products with weights in groups on every target: equal bytes where activations are int8."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.codegen.llvm.targets import resolve
from quantglow.interpreter import interpret
from quantglow.interpreter.program import ReferenceExecutable
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import GroupedMatMul, QuantizeRows
from quantglow.ir.types import f32
from quantglow.runtime.native.compilation import compile_program
from quantglow.support.arrays import Array
from tests.matrix.general import LEVELS, Sizes, assert_serves
from tests.matrix.harness import assert_targets_agree, in_turn, planned, run_backwards
from tests.support.combinations import mark_slow
from tests.support.effort import expensive
from tests.support.guarded import guarded

GROUPS = (16, 32, 48, 128, 256)
SPECIAL = np.array(
    [0, -0.0, 1e-45, -1e-38, 3e38, -3.4028235e38, np.inf, -np.inf, np.nan], np.float32
)

seeds = st.integers(0, 9999)
depths = st.integers(1, 80) | st.sampled_from([127, 128, 255, 513])
columns_of = st.integers(1, 70)
rows_of = st.integers(1, 70)
bits_of = st.sampled_from([2, 4, 8])


def weights(
    rng: np.random.Generator, columns: int, depth: int, group: int, bits: int, extreme: bool
) -> dict[str, Constant | int | None]:
    """Operands of a ``GroupedMatMul``: drawn codes, or only the least and the greatest."""
    groups = -(-depth // group)
    packed = rng.integers(0, 256, (columns, groups, group * bits // 8)).astype(np.uint8)
    points = rng.integers(0, 2**bits, (columns, groups)).astype(np.uint8)
    if extreme:
        packed = np.where(packed < 128, 0, 255).astype(np.uint8)
        points = np.where(points < 2 ** (bits - 1), 0, 2**bits - 1).astype(np.uint8)
    scales = np.exp(rng.normal(0, 3, (columns, groups))).astype(np.float32)
    has_points, has_bias = rng.integers(0, 2, 2)
    return {
        "w": Constant(name="w", value=packed),
        "scales": Constant(name="scales", value=scales),
        "zero_points": Constant(name="points", value=points) if has_points else None,
        "b": Constant(name="b", value=rng.normal(0, 9, columns).astype(np.float32))
        if has_bias
        else None,
        "bits": bits,
    }


def activations(rng: np.random.Generator, rows: int, depth: int, special: bool) -> Array:
    """Rows of different magnitudes; some with a number that is none, or hardly one."""
    x = rng.normal(0, 1, (rows, depth)) * np.exp(rng.normal(0, 4, (rows, 1)))
    if special:
        x[rng.random(x.shape) < 0.5 / depth] = rng.choice(SPECIAL)
        x[rng.random(rows) < 0.2] = rng.choice(SPECIAL)
    with np.errstate(over="ignore"):
        return x.astype(np.float32)


def product(x: Node, group: int, dynamic: bool, operands: dict) -> Node:
    rows = QuantizeRows(name="rows", x=x, group=group) if dynamic else x
    return GroupedMatMul(name="y", x=rows, **operands)


def assert_same(actual: Array, expected: Array, where: str = "") -> None:
    """Equal bits; any NaN is any other."""
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected), err_msg=where)
    bits = [np.where(np.isnan(a), 0, a).view(np.int32) for a in (actual, expected)]
    np.testing.assert_array_equal(*bits, err_msg=where)


def assert_all_same(graph: Graph, feeds: dict[str, Array], seed: int) -> None:
    (expected,) = interpret(graph, feeds)
    program, plan = planned(graph)
    (reference,) = ReferenceExecutable(program, plan).run(feeds)
    assert_same(reference, expected, "reference")
    for target in in_turn(seed):
        for threads in (1, 2):
            executable = compile_program(program, plan, resolve(target), threads)
            assert_same(executable.run(feeds)[0], expected, f"{target}, {threads} threads")
        assert_same(run_backwards(executable, feeds)[0], expected, f"{target}, item by item")


@pytest.mark.slow_variants
@pytest.mark.parametrize("group", mark_slow(GROUPS, {16, 48}))
@expensive
@given(bits_of, rows_of, depths, columns_of, st.booleans(), st.booleans(), seeds)
def test_products_of_quantized_rows_are_equal_bit_for_bit(
    group: int,
    bits: int,
    rows: int,
    depth: int,
    columns: int,
    extreme: bool,
    special: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    x = Input(name="x", tensor=f32(rows, depth))
    operands = weights(rng, columns, depth, group, bits, extreme)
    graph = Graph((x,), (("y", product(x, group, True, operands)),))
    fed = guarded(activations(rng, rows, depth, special), at_end=bool(rng.integers(2)))
    with np.errstate(all="ignore"):
        assert_all_same(graph, {"x": fed}, seed)


@pytest.mark.parametrize("group", mark_slow(GROUPS, {32, 256}))
@expensive
@given(bits_of, rows_of, depths, columns_of, seeds)
def test_products_of_floats(
    group: int, bits: int, rows: int, depth: int, columns: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = Input(name="x", tensor=f32(rows, depth))
    operands = weights(rng, columns, depth, group, bits, False)
    graph = Graph((x,), (("y", product(x, group, False, operands)),))
    fed = guarded(rng.normal(0, 1, (rows, depth)).astype(np.float32), at_end=bool(rng.integers(2)))
    assert_targets_agree(graph, {"x": fed}, targets=in_turn(seed))


@expensive
@given(rows_of, depths, st.sampled_from(GROUPS), st.booleans(), seeds)
def test_quantized_rows(rows: int, depth: int, group: int, special: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = Input(name="x", tensor=f32(rows, depth))
    graph = Graph((x,), (("rows", QuantizeRows(name="rows", x=x, group=group)),))
    fed = np.nan_to_num(activations(rng, rows, depth, special))
    assert_targets_agree(graph, {"x": guarded(fed, at_end=True)}, targets=in_turn(seed))


@pytest.mark.slow_variants
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("target", LEVELS)
def test_any_number_of_rows(target: str, dynamic: bool) -> None:
    def make(sizes: Sizes) -> Graph:
        x = Input(name="x", tensor=f32(sizes["T"], 72))
        operands = weights(np.random.default_rng(5), 50, 72, 32, 4, False)
        return Graph((x,), (("y", product(x, 32, dynamic, operands)),))

    others = [{"T": t} for t in (2, 3, 4, 5, 11, 12, 13, 25, 64, 131)]
    for hint in (2, 37):
        assert_serves(make, {"T": hint}, others, resolve(target))
    assert_serves(make, {"T": 37}, others, resolve(target), threads=2)
