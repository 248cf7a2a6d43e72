"""Float convolutions with fewer products, on every level, of any number and width."""

from __future__ import annotations

import pytest

from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.graph import Graph
from tests.generators.float_graphs.filters import bank, three_taps, transform
from tests.matrix.general import LEVELS, Sizes, assert_serves
from tests.matrix.harness import TARGETS, assert_agree
from tests.support.combinations import covering
from tests.support.feeds import feeds_of

OTHERS = [{"N": n, "W": w} for n, w in ((4, 5), (3, 16), (11, 7), (5, 30))]
HINT = {"N": 4, "W": 9}


def bank_of_sines(sizes: Sizes) -> Graph:
    return transform(sizes["N"], 4, 16, bank(64, 65, 64, 64))


def long_bank(sizes: Sizes) -> Graph:
    return transform(1, sizes["W"], 16, bank(64, 65, 64, 63))


def rows_of_four(sizes: Sizes) -> Graph:
    return three_taps(sizes["N"], 4, (49, 64), (1, 1))


def rows_of_any_width(sizes: Sizes) -> Graph:
    return three_taps(sizes["N"], sizes["W"], (49, 64), (1, 1))


@pytest.mark.parametrize(
    ("make", "target", "threads"),
    covering(
        [bank_of_sines, long_bank, rows_of_four, rows_of_any_width],
        ["native", *TARGETS],
        [1, 2, 3],
    ),
)
def test_the_interpreter_agrees(make, target: str, threads: int) -> None:
    graph = make({"N": 5, "W": 11})
    assert_agree(graph, feeds_of(graph), target, threads)


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", LEVELS)
def test_banks_on_any_number_of_signals(target: str) -> None:
    others = [{"N": n} for n in (2, 3, 50)]
    assert_serves(bank_of_sines, {"N": 7}, others, resolve(target))


@pytest.mark.parametrize("target", LEVELS)
def test_rows_of_four(target: str) -> None:
    assert_serves(rows_of_four, {"N": 7}, [{"N": n} for n in (4, 5, 50)], resolve(target))


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", LEVELS)
def test_rows_of_any_width(target: str) -> None:
    assert_serves(rows_of_any_width, HINT, OTHERS, resolve(target))
