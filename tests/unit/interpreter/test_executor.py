"""The executor of graphs: order, memory, starting in the middle, errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from quantglow.interpreter.executor import Execution
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node, ancestors
from tests.unit.quantization.quantization_networks import small_cnn


def expression(node: Node, operands: Sequence[str]) -> str:
    """Values that tell how they were computed."""
    return f"{node.name}({','.join(operands)})" if operands else node.name


def outputs_of(graph: Graph) -> list[Node]:
    return [node for _, node in graph.outputs]


def whole(evaluate: Any = expression) -> Execution[str]:
    graph = small_cnn()
    return Execution(graph, outputs_of(graph), evaluate)


def test_each_node_is_evaluated_once_in_order() -> None:
    execution = whole()
    assert [node for node, _ in execution] == list(execution.graph.nodes)


def test_only_values_that_are_still_read_are_alive() -> None:
    execution = whole()
    for _ in execution:
        later = execution.graph.nodes[execution.position :]
        read = {o for node in later for o in node.operands}.union(execution.ends)
        assert execution.live.keys() == read & {*execution.graph.nodes[: execution.position]}


def test_ends_stay_and_nothing_else() -> None:
    execution = whole()
    middle = execution.graph.nodes[len(execution.graph.nodes) // 2]
    other = Execution(execution.graph, [middle], expression)
    assert other.run() == [other.live[middle]]
    assert other.live.keys() == {middle}


def test_only_what_some_nodes_need_is_evaluated() -> None:
    graph = small_cnn()
    middle = graph.nodes[len(graph.nodes) // 2]
    execution = Execution(graph, (), expression, only=[middle])
    assert {node for node, _ in execution} == ancestors([middle])
    assert not execution.live
    expected = dict(Execution(graph, (), expression))[middle]
    assert Execution(graph, [middle], expression, only=()).run() == [expected]


@pytest.mark.parametrize("position", range(len(small_cnn().nodes) + 1))
def test_a_run_from_any_state_gives_the_same(position: int) -> None:
    first = whole()
    for _ in range(position):
        next(iter(first))
    evaluated: list[Node] = []

    def noted(node: Node, operands: Sequence[str]) -> str:
        evaluated.append(node)
        return expression(node, operands)

    resumed = Execution(first.graph, first.ends, noted, first.state)
    assert resumed.run() == first.run()
    again = [node for node in evaluated if not isinstance(node, Constant)]
    assert again == [n for n in first.graph.nodes[position:] if not isinstance(n, Constant)]


def test_an_error_ends_the_run_where_it_is() -> None:
    wrong = whole().graph.nodes[3].name

    def evaluate(node: Node, operands: Sequence[str]) -> str:
        if node.name == wrong:
            raise ValueError(wrong)
        return expression(node, operands)

    execution = whole(evaluate)
    with pytest.raises(ValueError, match=wrong):
        execution.run()
    assert execution.position == 3
