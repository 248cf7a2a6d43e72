"""Reader counts and names that rules ask for while a pass rewrites."""

from __future__ import annotations

from quantglow.graph.names import Names
from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops import Abs, Relu, Tanh
from tests.support.builder import Builder


def test_fresh_names_are_numbered() -> None:
    uses = Uses(names=Names({"x", "x_2"}))
    assert [uses.fresh("x"), uses.fresh("x"), uses.fresh("y")] == ["x_3", "x_4", "y"]


def test_a_value_reached_past_a_removed_node_is_not_read_once() -> None:
    seen: list[bool] = []

    def skip(node: Node, uses: Uses) -> Node | None:
        if isinstance(node, Tanh):
            seen.append(uses.single(node.x))
        match node:
            case Relu(x=Relu(x=x)):
                return x
        return None

    b = Builder()
    x = b.make(Abs, x=b.input(3))
    shared = b.make(Relu, x=x)
    y = b.make(Tanh, x=b.make(Relu, x=shared))
    rewrite_pass("skip")(skip)(b.graph(shared, y))
    assert seen[0] is False
