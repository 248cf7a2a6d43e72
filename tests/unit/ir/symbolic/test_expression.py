"""Expressions of sizes have the values of the integers that they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.symbolic.expression import LARGEST, SMALLEST, Expression, number, symbol
from quantglow.ir.symbolic.guards import Relation
from quantglow.ir.symbolic.straight_line import Evaluation, conditions

VALUES = st.fixed_dictionaries({name: st.integers(2, 300) for name in "HWT"})
EXTREME_VALUES = st.fixed_dictionaries(
    {name: st.sampled_from([SMALLEST, SMALLEST + 1, LARGEST - 1, LARGEST]) for name in "HWT"}
)
SYMBOLS = {name: symbol(name) for name in "HWT"}
LEAVES = st.one_of(st.integers(-20, 20).map(number), st.sampled_from(list(SYMBOLS.values())))


def larger(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    pairs = st.tuples(inner, inner)
    divisors = st.one_of(st.integers(1, 20).map(number), st.sampled_from(list(SYMBOLS.values())))
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] - p[1]),
        pairs.map(lambda p: p[0] * p[1]),
        pairs.map(lambda p: p[0].maximum(p[1])),
        st.tuples(inner, divisors).map(lambda p: p[0] // p[1]),
        st.tuples(inner, divisors).map(lambda p: p[0] % p[1]),
    )


EXPRESSIONS = st.recursive(LEAVES, larger, max_leaves=6)


@given(EXPRESSIONS, EXPRESSIONS, VALUES)
def test_sums_and_products_are_those_of_integers(a: Expression, b: Expression, values) -> None:
    x, y = a.at(values), b.at(values)
    assert (a + b).at(values) == x + y
    assert (a - b).at(values) == x - y
    assert (a * b).at(values) == x * y
    assert a.maximum(b).at(values) == max(x, y)


@given(EXPRESSIONS, st.one_of(st.integers(1, 40).map(number), LEAVES), VALUES)
def test_quotients_round_down(a: Expression, b: Expression, values) -> None:
    divisor = b.at(values)
    if divisor > 0 and (b.constant is not None or b.bounds[0] > 0):
        assert (a // b).at(values) == a.at(values) // divisor
        assert (a % b).at(values) == a.at(values) % divisor


@given(EXPRESSIONS, st.one_of(VALUES, EXTREME_VALUES))
def test_values_lie_in_the_bounds(a: Expression, values) -> None:
    low, high = a.bounds
    assert low <= a.at(values) <= high


@given(st.lists(EXPRESSIONS, min_size=1, max_size=5), VALUES)
def test_many_expressions_are_evaluated_at_once(actual: list[Expression], values) -> None:
    together = Evaluation()
    positions = [together.add(expression) for expression in actual]
    results = together.program().always_at(values)
    assert [results[at] for at in positions] == [a.at(values) for a in actual]


@given(st.lists(st.tuples(EXPRESSIONS, st.sampled_from(Relation)), max_size=5), VALUES)
def test_many_conditions_are_tested_at_once(actual, values) -> None:
    one_by_one = all(relation.holds(e.at(values)) for e, relation in actual)
    assert (conditions(actual).at(values) is not None) is one_by_one


@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS)
def test_equal_sums_have_one_form(a: Expression, b: Expression, c: Expression) -> None:
    assert (a + b) * c == c * b + a * c
    assert hash((a + b) - b) == hash(a)


def test_multiples_leave_quotients() -> None:
    t, h = SYMBOLS["T"], SYMBOLS["H"]
    assert (t * number(384)) // t == number(384)
    assert (t * h * number(12)) // (t * number(4)) == h * number(3)
    assert ((t * number(16)) % number(16)).constant == 0
    assert (t // number(4)) // number(2) == t // number(8)


def test_a_divisor_may_not_be_zero() -> None:
    with pytest.raises(ZeroDivisionError):
        SYMBOLS["T"] // number(0)


def test_bounds_of_a_symbol() -> None:
    assert SYMBOLS["T"].bounds == (SMALLEST, LARGEST)
