"""Two readers on the same pages."""

from __future__ import annotations

import pytest
from scipy.stats import wilcoxon

from benchmarks.accuracy.paired_comparison import Comparison, Reading, comparisons, table


def reading(right: str, wrong: int = 0) -> Reading:
    """``right``: + and - for each line."""
    return Reading(tuple(sign == "+" for sign in right), 10 * len(right), wrong)


def test_a_reading_counts_lines_and_characters() -> None:
    assert Reading.of(("one", "two"), ["one", "tw"]) == Reading((True, False), 7, 1)
    assert Reading.of(("one",), []) == Reading((False,), 3, 3)


def test_lines_that_only_one_reads_decide() -> None:
    first, other = [reading("++++++"), reading("+-")], [reading("-----+"), reading("-+")]
    actual = Comparison.of("int8", first, other)
    assert (actual.lines, actual.exact, actual.only_first, actual.only_this) == (8, 2, 6, 1)
    assert actual.lines_p == pytest.approx(2 * (1 + 7) / 2**7)


def test_pages_are_paired_by_wrong_characters() -> None:
    first, other = [reading("+", 1)] * 6, [reading("+", 2 + i) for i in range(6)]
    actual = Comparison.of("int8", first, other)
    assert actual.wrong == 27
    assert actual.characters_p == pytest.approx(2 / 2**6)
    assert actual.characters_p == pytest.approx(wilcoxon([1, 2, 3, 4, 5, 6]).pvalue)


def test_equal_readers_do_not_differ() -> None:
    same = [reading("+-", 3)]
    actual = Comparison.of("int8", same, same)
    assert (actual.lines_p, actual.characters_p) == (1.0, 1.0)


def test_readers_of_other_pages_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        Comparison.of("int8", [reading("+")], [reading("+")] * 2)
    with pytest.raises(ValueError, match="zip"):
        Comparison.of("int8", [reading("+")], [reading("++")])


def test_the_first_reader_is_beside_itself() -> None:
    actual = comparisons({"float": [reading("++", 0)], "int8": [reading("+-", 1)]})
    assert table(actual).splitlines() == [
        "| reader | characters | lines | only float | only this | p, lines | p, characters |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| float | 100.00% | 2/2 | 0 | 0 | 1.000 | 1.000 |",
        "| int8 | 95.00% | 1/2 | 1 | 0 | 1.000 | 1.000 |",
    ]
