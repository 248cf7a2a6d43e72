"""Reader counts and names that rules ask for while a pass rewrites."""

from __future__ import annotations

from quantglow.ir.graph.node import Node
from quantglow.ir.graph.origins import Names
from quantglow.ir.ops import Abs, Relu, Tanh
from quantglow.transforms.rewrite import RewritePass, Uses, rewrite_pass
from tests.support.builder import Builder


def test_fresh_names_are_numbered() -> None:
    uses = Uses(names=Names({"x", "x_2"}))
    assert [uses.fresh("x"), uses.fresh("x"), uses.fresh("y")] == ["x_3", "x_4", "y"]


def test_a_value_reached_past_a_removed_node_is_not_read_once() -> None:
    observed: list[bool] = []

    def skip(node: Node, uses: Uses) -> Node | None:
        if isinstance(node, Tanh):
            observed.append(uses.single(node.x))
        match node:
            case Relu(x=Relu(x=x)):
                return x
        return None

    b = Builder()
    x = b.make(Abs, x=b.input(3))
    shared = b.make(Relu, x=x)
    y = b.make(Tanh, x=b.make(Relu, x=shared))
    rewrite_pass("skip")(skip)(b.graph(shared, y))
    assert observed[0] is False


def test_a_rule_that_leaves_a_node_alone_is_asked_once() -> None:
    asked: list[str] = []

    def skip(node: Node, uses: Uses) -> Node | None:
        asked.append(node.name)
        return node.x.x if isinstance(node, Relu) and isinstance(node.x, Relu) else None

    b = Builder()
    first = b.make(Tanh, x=b.input(3))
    rewrite_pass("skip")(skip)(b.graph(b.make(Relu, x=b.make(Relu, x=first))))
    assert asked.count(first.name) == 1


def test_a_rule_is_asked_again_where_readers_decide() -> None:
    def drop(node: Node, uses: Uses) -> Node | None:
        return node.x if isinstance(node, Tanh) and uses.single(node.x) else None

    b = Builder()
    shared = b.make(Relu, x=b.input(3))
    y = b.make(Tanh, x=shared)
    step = rewrite_pass("drop")(drop)
    assert step(b.graph(shared, y)).outputs[1][1] is y
    assert step(b.graph(y)).outputs[0][1] is shared


def test_nodes_do_not_keep_the_rule_of_one_run() -> None:
    b = Builder()
    graph = b.graph(b.make(Relu, x=b.input(3)))
    RewritePass("idle", lambda node, uses: None)(graph)
    assert not any(node.settled for node in graph.nodes)
