"""Importer of If."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from quantglow.errors import ImportBudgetError, ModelError
from quantglow.frontend.nodes.context import Call, Scope, Unsupported
from quantglow.frontend.nodes.values import Value
from quantglow.graph.node import Node
from quantglow.ops.selection import Where
from quantglow.ops.shape import Reshape

ImportBody = Callable[[onnx.GraphProto, Scope], None]
"""Binds the values of a subgraph in a scope."""


def import_if(call: Call, import_body: ImportBody) -> dict[str, Value]:
    """The branch it takes where the condition is known, else both with a choice behind them."""
    if not call.is_known(0):
        return chosen_or_missed(call, import_body)
    taken = bool(call.array(0, "condition").reshape(()))
    branch = call.attributes["then_branch" if taken else "else_branch"]
    import_body(branch, call.scope)
    inner = [call.scope.values[output.name] for output in branch.output]
    return dict(zip(call.proto.output, inner, strict=True))


def chosen_or_missed(call: Call, import_body: ImportBody) -> dict[str, Value]:
    """``chosen``; where that is refused, the value of the condition would help."""
    missed = len(call.scope.missed)
    try:
        return chosen(call, import_body)
    except Unsupported:
        call.scope.missed[missed:] = [call.tensor(0)]
        raise


def chosen(call: Call, import_body: ImportBody) -> dict[str, Value]:
    """A choice between the results of both branches, which have no effects; ``runtime.branches``
    decides whether the one that is not taken runs.  Refuses branches of which a part is not
    compiled, or that differ in type.
    """
    condition = call.tensor(0)
    if condition.type.size != 1:
        raise Unsupported("its condition is no scalar")
    taken = computed(call, "then_branch", import_body)
    other = computed(call, "else_branch", import_body)
    results: dict[str, Value] = {}
    for position, (x, y) in enumerate(zip(taken, other, strict=True)):
        x, y = of_one_rank(call, x, y)
        if x.type != y.type:
            raise Unsupported(f"its branches give {x.type} and {y.type}")
        name = call.result_name(position)
        made = Where(name=name, condition=condition, x=x, y=y)
        if made.type != x.type:
            raise Unsupported("its condition has more dimensions than its results")
        results[call.proto.output[position]] = made
    return results


def of_one_rank(call: Call, x: Node, y: Node) -> tuple[Node, Node]:
    """Two values; in loops, if both are one element, the one of fewer dimensions gets those of the
    other, as exporters do not tell scalars from vectors of one element."""
    if not call.scope.loops or x.type.size != 1 or y.type.size != 1:
        return x, y
    return reranked(call, x, y.type.shape), reranked(call, y, x.type.shape)


def reranked(call: Call, x: Node, shape: tuple[int, ...]) -> Node:
    """A value of one element in ``shape``, if that has more dimensions."""
    if x.type.rank >= len(shape):
        return x
    return Reshape(name=call.derived("element"), x=x, shape=shape)


def computed(call: Call, branch: str, import_body: ImportBody) -> list[Node]:
    """The outputs of a branch.  Raises ``Unsupported`` if one of its nodes is not compiled."""
    call.scope.conditions.append((call.tensor(0), branch == "then_branch"))
    try:
        return inner_values(call, branch, import_body)
    finally:
        call.scope.conditions.pop()


def inner_values(call: Call, attribute: str, import_body: ImportBody) -> list[Node]:
    """The outputs of a subgraph whose inputs are bound.  Raises ``Unsupported`` if one of its nodes
    is not compiled."""
    graph, scope = call.attributes[attribute], call.scope
    if scope.problems:
        raise Unsupported("its subgraphs were not looked at")
    fallback, scope.fallback = scope.fallback, False
    try:
        import_body(graph, scope)
        if scope.problems:
            raise Unsupported(f"{attribute}: {scope.problems[0]}")
        return [scope.tensor(output.name) for output in graph.output]
    except ImportBudgetError:
        raise
    except ModelError as error:
        raise Unsupported(f"{attribute}: {error}") from None
    finally:
        scope.fallback = fallback
        scope.problems.clear()
