"""Sizes and guards as text."""

from __future__ import annotations

import pytest
from hypothesis import given

from quantglow.symbolic.expression import Expression
from quantglow.symbolic.guards import Guard, Relation
from quantglow.symbolic.text import (
    guard_text,
    identifiers,
    read_expression,
    read_guard,
)
from tests.unit.symbolic.test_expression import EXPRESSIONS

NAMES = ("H", "W", "T")


@given(EXPRESSIONS)
def test_an_expression_is_read_as_it_was_written(found: Expression) -> None:
    assert read_expression(str(found), NAMES) == found


@given(EXPRESSIONS)
def test_a_guard_is_read_as_it_was_written(found: Expression) -> None:
    for relation in Relation:
        guard = Guard(found, relation)
        assert read_guard(guard_text(guard), NAMES) == guard


OTHERS = ["", "X", "H.W", "H**2", "(H+1)*(W+1)", "f(H)", "1.5", "True", "H(", "floor(H)"]


@pytest.mark.parametrize("text", [*OTHERS, "(" * 300, "floor(H,W-W)", "floor(H,-2)"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_expression(text, NAMES)


@pytest.mark.parametrize("text", ["H >= 1", "H", "H ~ 0", ""])
def test_other_guards_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_guard(text, NAMES)


def test_identifiers_differ() -> None:
    names = ["a b", "a_b", "a.b", "1", "for", "max", "é", "T"]
    found = identifiers(names)
    assert len(set(found.values())) == len(names)
    assert all(text.isidentifier() and text.isascii() for text in found.values())
    assert found["T"] == "T"
    assert found["a b"] == "a_b"
