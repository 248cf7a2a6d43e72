"""Nodes and graphs: traversal, rebuilding, and what ``verify`` refuses."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Add, Concat, Conv, Relu
from quantglow.ir.types import DType, ElementType, f32
from quantglow.support.errors import ModelError, TypeRuleError


def relu(name: str, x: Node) -> Relu:
    return Relu(name=name, x=x)


X = Input(name="x", tensor=f32(2))


def graph_of(*outputs: Node, inputs: tuple[Input, ...] = (X,)) -> Graph:
    return Graph(inputs, tuple((f"y{i}", o) for i, o in enumerate(outputs)))


def test_operands_come_before_users() -> None:
    a, b = relu("a", X), relu("b", X)
    graph = graph_of(Add(name="c", x=b, y=a), a)
    assert [n.name for n in graph.nodes] == ["x", "b", "a", "c"]


def test_a_deep_graph_needs_no_recursion() -> None:
    node: Node = X
    for i in range(5000):
        node = relu(f"r{i}", node)
    assert len(graph_of(node).nodes) == 5001


def test_a_reader_counts_once_for_each_operand_and_output() -> None:
    a = relu("a", X)
    graph = graph_of(Add(name="b", x=a, y=a), a, a)
    assert (graph.use_counts[a], len(graph.users[a])) == (4, 2)


def test_a_rebuild_without_changes_is_the_same_object() -> None:
    graph = graph_of(relu("b", relu("a", X)))
    assert graph.rebuild(lambda node: node) is graph


def test_a_rebuild_shows_rules_mapped_operands() -> None:
    graph = graph_of(relu("b", relu("a", X)))
    built = graph.rebuild(lambda n: n.operands[0] if n.name == "a" else n)
    assert [n.name for n in built.nodes] == ["x", "b"]


def test_a_type_is_inferred_anew_only_if_operands_are_of_other_types() -> None:
    node = relu("b", relu("a", X))
    assert node.with_operands((relu("c", X),)).type is node.type
    other = relu("c", Input(name="z", tensor=f32(3)))
    assert node.with_operands((other,)).type == f32(3)


def test_a_type_is_inferred_anew_for_another_constant() -> None:
    zeros, none = (Constant(name="w", value=np.zeros(n, np.float32)) for n in (2, 0))
    node = Concat(name="y", parts=(X, zeros), axis=0)
    assert node.with_operands((X, none)).type == f32(2)


def test_a_pass_may_not_replace_an_input() -> None:
    zero = Constant(name="z", value=np.zeros(2, np.float32))
    with pytest.raises(ModelError, match="replaced a graph input"):
        graph_of(relu("a", X)).rebuild(lambda n: zero if n is X else n)


def test_two_nodes_of_one_name_are_refused() -> None:
    with pytest.raises(ModelError, match="two nodes are called 'a'"):
        graph_of(relu("a", relu("a", X))).verify()


def test_an_undeclared_input_is_refused() -> None:
    with pytest.raises(ModelError, match="input 'x' is used but not declared"):
        graph_of(relu("a", X), inputs=()).verify()


def test_a_type_rule_names_operator_node_and_operands() -> None:
    y = Input(name="y", tensor=f32(3))
    with pytest.raises(TypeRuleError, match=r"Add 'a': .* \(x: f32\[2\], y: f32\[3\]\)"):
        Add(name="a", x=X, y=y)


def test_a_constant_must_have_its_element_type() -> None:
    with pytest.raises(TypeRuleError, match="the array is f32"):
        Constant(name="c", value=np.zeros(1, np.float32), element=ElementType(DType.I8))


def test_absent_operands_are_left_out_and_tuples_kept_together() -> None:
    image = Input(name="i", tensor=f32(1, 2, 2, 1))
    w = Constant(name="w", value=np.ones((1, 1, 1, 1), np.float32))
    conv = Conv(name="c", x=image, w=w, residual=image)
    joined = Concat(name="j", parts=(X, X, X), axis=0)
    assert (conv.operands, joined.operands) == ((image, w, image), (X, X, X))


def test_operands_are_exchanged_in_their_places() -> None:
    image = Input(name="i", tensor=f32(1, 2, 2, 1))
    other = relu("o", image)
    w = Constant(name="w", value=np.ones((1, 1, 1, 1), np.float32))
    conv = Conv(name="c", x=image, w=w, residual=image)
    built = conv.with_operands((image, w, other))
    assert isinstance(built, Conv)
    assert (built.x, built.b, built.residual) == (image, None, other)


def test_nodes_are_immutable() -> None:
    with pytest.raises(AttributeError):
        X.name = "y"  # type: ignore[misc]
