"""Importer of If; names that bodies of If and Loop read, capture and copy.

A node of a body that depends on its inputs is inside the body; every other one is computed once,
outside, and captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx

from quantglow.importer.onnx.nodes.context import Call, ImportScope, Unsupported
from quantglow.importer.onnx.nodes.values import Value
from quantglow.ir.graph.graph import Graph, topological_order
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops.binary import Where
from quantglow.ir.ops.shape import Reshape
from quantglow.ir.symbolic.size import Shape
from quantglow.support.errors import ImportBudgetError, ModelError

ImportBody = Callable[[onnx.GraphProto, ImportScope], None]
"""Binds the values of a subgraph in a scope."""


@dataclass
class Body:
    """The graph of a loop's body as it is made; constants in it have names of their own."""

    scope: ImportScope
    nodes: dict[Node, Node]
    captured: dict[Node, Input] = field(default_factory=dict)

    def inner(self, node: Node) -> Node:
        """The node inside of the body that stands for one of the scope."""
        if node not in self.nodes:
            name = self.scope.claim(node.name, derived=True)
            if isinstance(node, Constant):
                self.nodes[node] = replace(node, name=name)
            else:
                self.nodes[node] = self.captured[node] = Input(name=name, tensor=node.type)
        return self.nodes[node]


def close(
    scope: ImportScope, inputs: Sequence[Input], ends: Sequence[Node]
) -> tuple[Graph, tuple[Node, ...]]:
    """The body from ``inputs`` to ``ends``, and the values that it captures."""
    body, inside = Body(scope, {node: node for node in inputs}), set[Node](inputs)
    for node in topological_order(ends):
        if node not in inside and not inside.isdisjoint(node.operands):
            inside.add(node)
            body.nodes[node] = node.with_operands(tuple(map(body.inner, node.operands)))
    outputs = tuple((end.name, end) for end in map(body.inner, ends))
    return Graph((*inputs, *body.captured.values()), outputs), tuple(body.captured)


def originals(body: onnx.GraphProto) -> list[str]:
    """The outputs of a body by the names of what Identities copy."""
    copies = copied_names(body)
    return [original(str(output.name), copies) for output in body.output]


def copied_names(body: onnx.GraphProto) -> dict[str, str]:
    """Names of what Identities copy, by the names of the copies."""
    nodes = (node for node in body.node if node.op_type == "Identity")
    return {str(node.output[0]): str(node.input[0]) for node in nodes}


def original(name: str, copies: Mapping[str, str]) -> str:
    """The name of what a value is a copy of, else its own."""
    while name in copies:
        name = copies[name]
    return name


def names_read(graph: onnx.GraphProto) -> Iterator[str]:
    """The names that nodes of a graph read, those in subgraphs included."""
    for node in graph.node:
        yield from names_read_by(node)


def names_read_by(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, those in its subgraphs included."""
    yield from map(str, node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield from names_read(attribute.g)
            yield from (str(output.name) for output in attribute.g.output)


def import_if(call: Call, import_body: ImportBody) -> dict[str, Value]:
    """The branch it takes where the condition is known, else both with a choice behind them."""
    if not call.is_known(0):
        return _chosen_or_missed(call, import_body)
    holds = bool(call.array(0, "condition").reshape(()))
    branch = call.attributes["then_branch" if holds else "else_branch"]
    import_body(branch, call.scope)
    inner = [call.scope.values[output.name] for output in branch.output]
    return dict(zip(call.proto.output, inner, strict=True))


def _chosen_or_missed(call: Call, import_body: ImportBody) -> dict[str, Value]:
    """``choose``; where that is refused, the value of the condition would help."""
    missed = len(call.scope.missed)
    try:
        return _choose(call, import_body)
    except Unsupported:
        call.scope.missed[missed:] = [call.tensor(0)]
        raise


def _choose(call: Call, import_body: ImportBody) -> dict[str, Value]:
    """A choice between the results of both branches, which have no effects; ``runtime.branches``
    decides whether the one that is not taken runs.  Refuses branches of which a part is not
    compiled, or that differ in type.
    """
    condition = call.tensor(0)
    if not condition.type.is_single:
        raise Unsupported("its condition is no scalar")
    then_values = _compute(call, "then_branch", import_body)
    else_values = _compute(call, "else_branch", import_body)
    results: dict[str, Value] = {}
    for position, (x, y) in enumerate(zip(then_values, else_values, strict=True)):
        x, y = _of_one_rank(call, x, y)
        if x.type != y.type:
            raise Unsupported(f"its branches give {x.type} and {y.type}")
        name = call.result_name(position)
        choice = Where(name=name, condition=condition, x=x, y=y)
        if choice.type != x.type:
            raise Unsupported("its condition has more dimensions than its results")
        results[call.proto.output[position]] = choice
    return results


def _of_one_rank(call: Call, x: Node, y: Node) -> tuple[Node, Node]:
    """Two values; in loops, if both are one element, the one of fewer dimensions gets those of the
    other, as exporters do not tell scalars from vectors of one element."""
    if not call.scope.loops or not x.type.is_single or not y.type.is_single:
        return x, y
    return rerank(call, x, y.type.shape), rerank(call, y, x.type.shape)


def rerank(call: Call, x: Node, shape: Shape) -> Node:
    """A value of one element in ``shape``, if that has more dimensions."""
    if x.type.rank >= len(shape):
        return x
    return Reshape(name=call.derive("element"), x=x, shape=shape)


def _compute(call: Call, branch: str, import_body: ImportBody) -> list[Node]:
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
