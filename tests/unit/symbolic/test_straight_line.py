"""Straight-line programs are read back as they were written, and other texts are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.symbolic.evaluation import Evaluation, conditions
from quantglow.symbolic.expression import Expression
from quantglow.symbolic.guards import Relation
from quantglow.symbolic.straight_line import StraightLine
from tests.unit.symbolic.test_expression import EXPRESSIONS, VALUES


@given(st.lists(EXPRESSIONS, max_size=5), VALUES)
def test_a_program_that_is_read_computes_the_same(found: list[Expression], values: Any) -> None:
    sizes = Evaluation()
    positions = [sizes.add(expression) for expression in found]
    written = json.loads(json.dumps(sizes.program().to_json()))
    results = StraightLine.from_json(written).always_at(values)
    assert [results[at] for at in positions] == [e.at(values) for e in found]


@given(st.lists(st.tuples(EXPRESSIONS, st.sampled_from(Relation)), max_size=5), VALUES)
def test_conditions_that_are_read_hold_at_the_same_values(found: Any, values: Any) -> None:
    read = StraightLine.from_json(json.loads(json.dumps(conditions(found).to_json())))
    assert (read.at(values) is not None) is all(r.holds(e.at(values)) for e, r in found)


@pytest.mark.parametrize(
    ("lines", "results"),
    [
        (["__import__('os')"], []),
        (["s0*2", "exit()"], []),
        (["s1"], []),
        (["v0"], []),
        (["s0", "v0 >= 0", "v1 + 1"], []),
        (["s0 >= 1"], []),
        (["s0 // 2 // 3"], []),
        (["s0\n"], []),
        ([], ["v0"]),
        ([], ["exit"]),
        ([], [True]),
        ([], [1.5]),
    ],
)
def test_other_texts_are_refused(lines: list[str], results: list[object]) -> None:
    with pytest.raises(ValueError, match=r"is no|which is not above"):
        StraightLine.from_json([["T"], lines, results])


def test_a_division_that_a_condition_guards_is_not_computed_elsewhere() -> None:
    program = StraightLine.from_json([["T"], ["s0 + -4", "v0 != 0", "100 // v0"], ["v2"]])
    assert program.at({"T": 4}) is None
    assert program.at({"T": 9}) == (20,)
