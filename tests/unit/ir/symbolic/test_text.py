"""Sizes and guards as text."""

from __future__ import annotations

import pytest
from hypothesis import given

from quantglow.ir.symbolic.expression import Expression, number, symbol
from quantglow.ir.symbolic.guards import Guard, Relation
from quantglow.ir.symbolic.size import Size, symbols
from quantglow.ir.symbolic.text import (
    guard_text,
    identifiers,
    parse_tree,
    read_expression,
    read_guards,
    size_from,
)
from tests.unit.ir.symbolic.test_expression import EXPRESSIONS

NAMES = ("H", "W", "T")
HINTS = dict.fromkeys(NAMES, 8)


@given(EXPRESSIONS)
def test_an_expression_is_read_as_it_was_written(actual: Expression) -> None:
    assert read_expression(str(actual), NAMES) == actual


@given(EXPRESSIONS)
def test_a_guard_is_read_as_it_was_written(actual: Expression) -> None:
    for relation in Relation:
        guard = Guard(actual, relation)
        assert read_guards([guard_text(guard)], HINTS)[-1] == guard


NO_EXPRESSIONS = ["", "X", "H.W", "H**2", "(H+1)*(W+1)", "f(H)", "1.5", "True", "H(", "floor(H)"]
NO_QUOTIENTS = ["floor(H,W-W)", "floor(H,-2)", "floor(H,W-9)", "0*floor(H,W-8)"]
TOO_LARGE = ["*".join("H" * 17), "9" * 20, "*".join(["99999999"] * 3), "+".join(["H"] * 2000)]
SUMS = "*".join(["floor(2*H+2*W+2*T,2)"] * 17)
OTHERS = [*NO_EXPRESSIONS, *NO_QUOTIENTS, *TOO_LARGE, SUMS, "(" * 300]


@pytest.mark.parametrize("text", OTHERS)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_expression(text, NAMES)


@pytest.mark.parametrize("text", ["H >= 1", "H", "H ~ 0", "", "floor(T,H-9) >= 0"])
def test_other_guards_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_guards([text], HINTS)


def test_the_sign_of_a_divisor_is_a_guard() -> None:
    sizes, guards = symbols(HINTS)
    actual = size_from(parse_tree("floor(50*max(T-8,0),9-T)"), sizes)
    assert isinstance(actual, Size)
    assert list(guards.recorded) == [Guard(number(8) - symbol("T"), Relation.NOT_LESS)]
    assert not guards.hold({**HINTS, "T": 10})


def test_the_sign_of_a_divisor_in_a_condition_is_a_condition_before_it() -> None:
    sign, written = read_guards(["floor(100,9-T) >= 0"], HINTS)
    assert str(sign) == "8 >= T"
    assert "floor" in str(written)


def test_a_divisor_is_proven_from_the_conditions_that_stand_before() -> None:
    assert len(read_guards(["T-5 >= 0", "floor(100,T-4) >= 0"], HINTS)) == 2


def test_identifiers_differ() -> None:
    names = ["a b", "a_b", "a.b", "1", "for", "max", "é", "T"]
    actual = identifiers(names)
    assert len(set(actual.values())) == len(names)
    assert all(text.isidentifier() and text.isascii() for text in actual.values())
    assert actual["T"] == "T"
    assert actual["a b"] == "a_b"
