"""Arrangements of a graph whose depth-first orders need more than its best one."""

from __future__ import annotations

from functools import partial

import pytest

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Concat
from quantglow.memory import schedule as arrange
from quantglow.memory.planner import MemoryPlan
from quantglow.memory.schedule import Arranged, arrange_program
from quantglow.transforms.program.generate import generate_by_node
from tests.support.builder import Builder


def ladder() -> Graph:
    """Two wide branches, each of which reads a narrow value of the other one."""
    b = Builder(channels_last=True)
    x = b.input(1, 4, 4, 4)
    one, two = b.conv(x, 64), b.conv(x, 64)
    small, tiny = b.conv(one, 4), b.conv(two, 4)
    parts: tuple[Node, ...] = (small, b.conv(b.conv(tiny, 64), 4), b.conv(b.conv(small, 64), 4))
    wide = b.make(Concat, parts=(*parts, b.conv(b.conv(tiny, 64), 4)), axis=3)
    return b.graph(b.conv(b.make(Concat, parts=(wide, one), axis=3), 4), b.conv(two, 4))


def arrange_by(way: str) -> Arranged:
    graph = ladder()
    return arrange_program(graph, partial(generate_by_node, graph), way)


def test_a_search_proves_that_its_order_is_the_best() -> None:
    assert arrange_by("memory").plan.is_optimal


def test_an_order_without_a_search_proves_nothing() -> None:
    plan = arrange_by("fast").plan
    assert plan.every_order_nbytes is None
    assert not plan.is_optimal


def test_programs_of_too_many_tasks_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrange, "MOST_TASKS", 3)
    assert arrange_by("memory").plan.every_order_nbytes is None


@pytest.mark.parametrize(
    ("every_order", "text"),
    [
        (None, "arena 200 bytes, lower bound 100 (50.0%)"),
        (90, "arena 200 bytes, lower bound 100 (50.0%), every order of execution needs 90"),
        (
            200,
            "arena 200 bytes, lower bound 100 (50.0%), optimal: no order of execution needs less",
        ),
    ],
)
def test_a_plan_says_what_is_proven(every_order: int | None, text: str) -> None:
    assert str(MemoryPlan({}, 200, 100, every_order)) == text
