"""The law ``parse(print(ir)) == ir``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import quantglow.ir.program.text as program_text
from quantglow.ir.graph.attributes import Dense, encode, parse_call
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.graph.signature import DECLARED
from quantglow.ir.graph.text import (
    arrays_written_out,
    parse_graph,
    print_graph,
    print_with_arrays,
    text_constants,
)
from quantglow.ir.ops import Relu
from quantglow.ir.ops.expression import Expr, arg, call, iconst, lconst, parse_expression
from quantglow.ir.ops.functions import BINARY, SELECT, UNARY
from quantglow.ir.program.program import Program
from quantglow.ir.types import DType, ElementType, QuantParams, f32
from quantglow.support.arrays import Array
from quantglow.transforms.lowering import lower
from quantglow.transforms.program.generate import generate
from tests.generators.programs import programs
from tests.generators.quantized_graphs.graphs import mixed_graphs
from tests.support.effort import expensive, moderate
from tests.support.same import same_graph, same_program

LARGE = 1 << 20
"""Maximum number of elements of arrays that are written out."""

names = st.text(min_size=1)
float32 = st.floats(width=32, allow_nan=False)
scales = st.floats(2.0**-126, 2.0**100, width=32)
symmetric = st.lists(scales, min_size=1, max_size=4).map(lambda s: QuantParams.symmetric(s, 3))


def elements_of(dtype: DType) -> st.SearchStrategy[ElementType]:
    has_zero_points = not dtype.is_float and dtype is not DType.BOOL
    zero_points = st.integers(*dtype.limits) if has_zero_points else st.just(0)
    per_tensor = st.builds(QuantParams.per_tensor, scales, zero_points)
    return st.builds(ElementType, st.just(dtype), st.one_of(st.none(), per_tensor, symmetric))


dtypes = st.sampled_from([dtype for dtype in DType if not dtype.is_object])
elements = dtypes.flatmap(elements_of)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
attributes = st.recursive(
    st.one_of(scalars, elements), lambda inner: st.lists(inner, max_size=3).map(tuple)
)


def calls(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(call, st.sampled_from([*UNARY]), inner),
        st.builds(call, st.sampled_from([*BINARY]), inner, inner),
        st.builds(call, st.just(SELECT), inner, inner, inner),
    )


whole = st.integers(-999, 999)
constants = st.one_of(
    float32.map(lambda v: Expr("f", value=v)), whole.map(iconst), whole.map(lconst)
)
expressions = st.recursive(st.one_of(st.integers(0, 3).map(arg), constants), calls)


@pytest.mark.slow
@expensive
@given(mixed_graphs(), st.dictionaries(names, st.sampled_from(DECLARED)))
def test_a_graph_is_read_back(graph: Graph, declared: dict[str, str]) -> None:
    graph = replace(graph, declared=declared)
    assert same_graph(parse_graph(print_graph(graph), text_constants(graph)), graph)


@expensive
@given(mixed_graphs())
def test_texts_with_arrays_stand_alone(graph: Graph) -> None:
    assert same_graph(parse_graph(print_with_arrays(graph, LARGE), {}), graph)
    program = generate(lower(graph))
    text = program.text(arrays_written_out(LARGE))
    assert same_program(program_text.parse_program(text, {}), program)


@given(dtypes.flatmap(lambda dtype: hnp.arrays(dtype.numpy, hnp.array_shapes())))
def test_an_array_that_is_written_out_is_read_back(array: Array) -> None:
    dense = parse_call(f"Op(key={encode(Dense.of(array))})")[1]["key"]
    np.testing.assert_array_equal(dense.array(), array, strict=True)


@moderate
@given(mixed_graphs())
def test_a_lowered_graph_is_read_back(graph: Graph) -> None:
    lowered = lower(graph)
    assert same_graph(parse_graph(print_graph(lowered), text_constants(lowered)), lowered)


@given(programs())
def test_a_program_is_read_back(program: Program) -> None:
    again = program_text.parse_program(str(program), program_text.text_constants(program))
    assert same_program(again, program)


@given(st.lists(names, min_size=4, max_size=4, unique=True))
def test_any_name_is_read_back(drawn: list[str]) -> None:
    x = Input(name=drawn[0], tensor=f32(2))
    graph = Graph((x,), ((drawn[1], Relu(name=drawn[2], x=x)),), drawn[3])
    assert same_graph(parse_graph(print_graph(graph), {}), graph)


@given(st.lists(names, min_size=2, max_size=2, unique=True))
def test_any_name_of_a_buffer_is_read_back(drawn: list[str]) -> None:
    first, second = drawn
    x = Input(name=first, tensor=f32(2))
    program = generate(lower(Graph((x,), ((second, Relu(name=second, x=x)),))))
    assert same_program(program_text.parse_program(str(program), {}), program)


@given(attributes)
def test_any_attribute_is_read_back(value: object) -> None:
    assert parse_call(f"Op(key={encode(value)})") == ("Op", {"key": value})


@given(expressions)
def test_an_expression_is_read_back(expression: Expr) -> None:
    assert parse_expression(str(expression)) == expression


@given(elements)
def test_the_text_of_an_element_type_is_stable(element: ElementType) -> None:
    again = parse_call(f"Op(key={encode(element)})")[1]["key"]
    assert encode(again) == encode(element)
