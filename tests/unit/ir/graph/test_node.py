"""Declarations of operators: which fields are operands, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest

from quantglow.ir.graph.node import OPS, Constant, Node, attribute_fields, op, operand_fields
from quantglow.ir.ops import Relu, Unary
from quantglow.ir.types import TensorType


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Operators declared in a test are unknown after it."""
    with patch.dict(OPS):
        yield


def test_fields_of_nodes_are_operands_and_others_are_attributes() -> None:
    @op
    class Several(Node):
        x: Node
        remaining: tuple[Node, ...]
        w: Constant | None = None
        out: TensorType | None = None

    assert operand_fields(Several) == ("x", "remaining", "w")
    assert attribute_fields(Several) == ("out",)


def relu() -> type[Node]:
    class OfRelu(Node):
        x: Relu

    return OfRelu


def base_class() -> type[Node]:
    class OfUnary(Node):
        x: Unary | None = None

    return OfUnary


def several() -> type[Node]:
    class OfConstants(Node):
        x: tuple[Constant, ...]

    return OfConstants


def quoted() -> type[Node]:
    class OfQuoted(Node):
        x: "Node"  # noqa: UP037 - as where annotations are no text

    return OfQuoted


@pytest.mark.parametrize("declare", [relu, base_class, several, quoted])
def test_an_operand_of_another_annotation_is_refused(declare: Callable[[], type[Node]]) -> None:
    kind = declare()
    with pytest.raises(TypeError, match=rf"{kind.__name__}.x: .*Remedy"):
        op(kind)
    assert kind.__name__ not in OPS


def test_an_evaluated_annotation_is_refused() -> None:
    kind = type("OfClass", (Node,), {"__annotations__": {"x": Node}, "__module__": __name__})
    with pytest.raises(TypeError, match=r"OfClass.x: .*from __future__ import annotations"):
        op(kind)


def test_a_second_operator_of_one_name_is_refused() -> None:
    class Again(Node):
        x: Node

    Again.__name__ = "Relu"
    with pytest.raises(TypeError, match=r"operator Relu already, in quantglow\.ir\.ops"):
        op(Again)
    assert OPS["Relu"] is Relu
