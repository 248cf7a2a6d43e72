"""The nodes of a graph that quantglow compiles, found by importing it with free sizes.

A node is claimed where its results are values of the graph that no other runtime computes.  Claimed
nodes that follow each other in topological order are a group: no path leads out of one and back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

import onnx

from quantglow.ep.macs import count_claimed, count_left
from quantglow.ep.reports import Claim
from quantglow.importer.onnx.budget import describe
from quantglow.importer.onnx.nodes.context import ImportScope
from quantglow.importer.onnx.nodes.values import IntegerValue, KnownValue
from quantglow.importer.onnx.reading.proto import all_nodes
from quantglow.importer.onnx.source import Source
from quantglow.ir.graph.family import Case
from quantglow.ir.graph.node import Node
from quantglow.ir.graph.signature import Signature
from quantglow.ir.ops.external import External
from quantglow.ir.symbolic.size import symbols
from quantglow.runtime.programs.symbolic_graphs import case_template, fitting, free_case
from quantglow.support.errors import ModelError

HINTS = (8, 16, 64, 224, 1)
"""Sizes of free dimensions that are tried, in this order: networks do not take all of them."""

PRODUCTS = frozenset(
    {
        *("Attention", "Conv", "ConvInteger", "ConvTranspose", "Einsum", "FusedConv", "FusedGemm"),
        *("FusedMatMul", "GRU", "Gemm", "GroupQueryAttention", "LSTM", "MatMul", "MatMulInteger"),
        *("MatMulNBits", "MultiHeadAttention", "QLinearConv", "QLinearMatMul", "RNN"),
    }
)
"""Operators that make a part of a graph worth the way into it and back."""


def claim_nodes(source: Source) -> tuple[dict[str, int], Claim]:
    """The groups of claimed nodes, from 1 on, by their names; and what to say of the graph.

    Raises ``ModelError`` for a graph that cannot be imported at any of the sizes that are tried.
    """
    nodes = list(source.proto.graph.node)
    scope = _free_scope(source)
    compiled = [_is_compiled(node, scope) for node in nodes]
    groups, number, start = dict[str, int](), 0, 0
    for is_compiled, run in groupby(compiled):
        size = len(list(run))
        if is_compiled and (size == len(nodes) or _is_worth_it(nodes[start : start + size])):
            number += 1
            groups |= {node.name: number for node in nodes[start : start + size]}
        start += size
    claimed = [node for node in nodes if node.name in groups]
    left = Counter(node.op_type for node in nodes if node.name not in groups)
    reasons = tuple(_reasons(nodes, compiled, scope))
    macs = count_claimed(claimed, scope), count_left(scope)
    return groups, Claim(len(nodes), len(groups), number, reasons, dict(left), *macs)


def _free_scope(source: Source) -> ImportScope:
    """Every value of a model at free sizes.  Raises ``ModelError``."""
    signature = source.signature
    if wide := [port.name for port in signature.ports if port.declared == "float64"]:
        raise ModelError(f"{wide[0]!r} is float64, which quantglow computes in float32")
    if unranked := [port.name for port in signature.inputs if port.dims is None]:
        raise ModelError(f"the rank of {unranked[0]!r} is not known before a call")
    refusals: list[ModelError] = []
    for hint in HINTS if signature.is_free else HINTS[:1]:
        case = _case_at(signature, hint)
        template = case_template(signature, case)
        sizes, guards = symbols(fitting(template, case) or {})
        free = free_case(template, sizes, ())
        try:
            return source.scope(free.shape_map, None, fallback=True, guards=guards)
        except ModelError as error:
            refusals.append(error)
    raise refusals[0]


def _case_at(signature: Signature, size: int) -> Case:
    """The input shapes with this size for free dimensions."""
    return Case.of(
        {
            port.name: tuple(dim if isinstance(dim, int) else size for dim in port.dims or ())
            for port in signature.inputs
        }
    )


def _is_compiled(node: onnx.NodeProto, scope: ImportScope) -> bool:
    """Whether the results of a node that something reads are values that quantglow computes."""
    names = [name for name in node.output if name and name in scope.used]
    values = [scope.values.get(name) for name in names]
    return bool(values) and all(
        isinstance(value, Node | KnownValue | IntegerValue)
        and not isinstance(value, External)
        and value not in scope.placeholders
        for value in values
    )


def _is_worth_it(nodes: Sequence[onnx.NodeProto]) -> bool:
    """Whether some nodes, or bodies in them, have products or recurrences."""
    return any(node.op_type in PRODUCTS for node in all_nodes(nodes))


def _reasons(
    nodes: Sequence[onnx.NodeProto], compiled: Sequence[bool], scope: ImportScope
) -> Iterator[str]:
    """A reason for each operator that is left, the first one of a kind."""
    lines = {line.partition(": ")[0]: line.partition(": ")[2] for line in scope.problems}
    known: set[str] = set()
    for node, is_compiled in zip(nodes, compiled, strict=True):
        if is_compiled or node.op_type in known:
            continue
        known.add(node.op_type)
        values = (scope.values.get(name) for name in node.output)
        reasons = (value.reason for value in values if isinstance(value, External))
        reason = next(
            reasons, lines.get(describe(node), "it reads what quantglow does not compute")
        )
        yield f"{node.op_type}: {reason}"
