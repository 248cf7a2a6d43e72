"""Straight-line programs are read back as they were written, and other texts are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.symbolic.expression import Expression
from quantglow.ir.symbolic.guards import Relation
from quantglow.ir.symbolic.straight_line import MOST_LINES, Evaluation, StraightLine, conditions
from quantglow.support.errors import FileFormatError
from tests.unit.ir.symbolic.test_expression import EXPRESSIONS, VALUES


@given(st.lists(EXPRESSIONS, max_size=5), VALUES)
def test_a_program_that_is_read_computes_the_same(actual: list[Expression], values: Any) -> None:
    sizes = Evaluation()
    positions = [sizes.add(expression) for expression in actual]
    written = json.loads(json.dumps(sizes.program().to_json()))
    results = StraightLine.from_json(written).always_at(values)
    assert [results[at] for at in positions] == [e.at(values) for e in actual]


@given(st.lists(st.tuples(EXPRESSIONS, st.sampled_from(Relation)), max_size=5), VALUES)
def test_conditions_that_are_read_hold_at_the_same_values(actual: Any, values: Any) -> None:
    read = StraightLine.from_json(json.loads(json.dumps(conditions(actual).to_json())))
    assert (read.at(values) is not None) is all(r.holds(e.at(values)) for e, r in actual)


OTHERS: dict[str, tuple[list[Any], list[object]]] = {
    "a call": (["__import__('os')"], []),
    "another statement": (["s0*2", "exit()"], []),
    "an unknown symbol": (["s1"], []),
    "a line below": (["v0"], []),
    "a condition as a number": (["s0", "v0 >= 0", "v1 + 1"], []),
    "another condition": (["s0 >= 1"], []),
    "two quotients": (["s0 // 2 // 3"], []),
    "a line break": (["s0\n"], []),
    "a result that is not there": ([], ["v0"]),
    "a result that is a call": ([], ["exit"]),
    "a condition as a result": (["s0 >= 0"], ["v0"]),
    "a number as a text": ([], ["12"]),
    "a truth value": ([], [True]),
    "a fraction": ([], [1.5]),
    "a line that is no text": ([5], []),
    "digits of another script": (["s٠ + 1"], []),
    "a number of another script": (["s0 + ٤"], []),
    "a digit above": (["s0*²"], []),
    "a leading zero": (["s0*08"], []),
    "a leading zero of a name": (["s00 + 1"], []),
    "an underscore": (["s0*1_000"], []),
    "minus zero": (["s0 + -0"], []),
    "two spaces": (["s0  + 1"], []),
    "many digits": (["s0*" + "9" * 20], []),
    "many factors": (["*".join(["s0"] * 65)], []),
    "a long line": ([" + ".join(["s0"] * 4096)], []),
    "squares of squares": (["s0*s0", *(f"v{i}*v{i}" for i in range(20))], []),
    "a huge result": ([], [1 << 5000]),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_texts_are_refused(case: str) -> None:
    lines, results = OTHERS[case]
    with pytest.raises(ValueError, match=r"is no|is read and not above|factors|bits"):
        StraightLine.from_json([["T"], lines, results])


def test_programs_of_many_lines_are_refused() -> None:
    with pytest.raises(ValueError, match=r"more than \d+ lines"):
        StraightLine.from_json([["T"], ["s0"] * (MOST_LINES + 1), []])


@given(st.lists(EXPRESSIONS, max_size=5), st.data())
def test_a_changed_text_is_refused_or_computes_what_it_says(actual: Any, data: Any) -> None:
    """A character of a line is replaced: what is run was written here from numbers."""
    sizes = Evaluation()
    for expression in actual:
        sizes.add(expression)
    symbols, lines, results = sizes.program().to_json()
    if lines:
        at = data.draw(st.integers(0, len(lines) - 1))
        place = data.draw(st.integers(0, len(lines[at]) - 1))
        other = data.draw(st.sampled_from([*"0123456789sv-+*/ ()=<>,!_.e", "٣", "²", "\n", ""]))
        lines[at] = lines[at][:place] + other + lines[at][place + 1 :]
    try:
        read = StraightLine.from_json([symbols, lines, results])
    except ValueError:
        return
    assert list(read.lines) == lines
    assert all(line.isascii() for line in read.lines)
    read.at(dict.fromkeys(symbols, 5))


def test_a_division_by_0_gives_no_results() -> None:
    program = StraightLine.from_json([["T"], ["s0 + -4", "100 // v0"], ["v1"]])
    assert program.at({"T": 4}) is None
    with pytest.raises(FileFormatError, match="divided by 0"):
        program.always_at({"T": 4})


def test_the_name_of_a_symbol_is_no_code() -> None:
    name = "x'] + exit() + ['"
    assert StraightLine.from_json([[name], ["s0*2"], ["v0"]]).at({name: 4}) == (8,)


def test_a_division_that_a_condition_guards_is_not_computed_elsewhere() -> None:
    program = StraightLine.from_json([["T"], ["s0 + -4", "v0 != 0", "100 // v0"], ["v2"]])
    assert program.at({"T": 4}) is None
    assert program.at({"T": 9}) == (20,)
