"""Float operators whose operands are all known are evaluated as what they are imported as.

So a value means the same whether it is known at import or computed later: ``onnx.reference``, which
``folding`` uses for the rest, has another idea of rounded-up pools, of sequences of different
lengths and of more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import onnx

from quantglow.errors import BackendError
from quantglow.foreign_types import Array
from quantglow.frontend.budget import Meter
from quantglow.frontend.nodes.context import (
    IMPORTERS,
    ML,
    Call,
    Importer,
    Result,
    Scope,
    Unsupported,
    qualified,
)
from quantglow.frontend.nodes.folding import admit, inferred_types
from quantglow.frontend.nodes.values import Known, Value
from quantglow.frontend.resolvers.external import left_to_fallback
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.interpreter.executor import Execution
from quantglow.ops.work import work_of

FLOAT = onnx.TensorProto.FLOAT
COMPUTED = frozenset({FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL})
"""Element types of operands and results; on others importers may compute with other ones."""

BYTES = frozenset({"DynamicQuantizeLinear"})
"""Operators whose importers give uint8 as they are."""

ABSENT_IF_EMPTY = frozenset({"Resize"})
"""Operators of which no operand is an empty tensor: such a one is left out."""

Bind = Callable[[onnx.NodeProto, Sequence[Result], Scope], dict[str, Value]]
"""``importer.bind``."""


def is_ours(proto: onnx.NodeProto, operands: Mapping[str, Value], opsets: dict[str, int]) -> bool:
    """Whether the node is known, computes with float32, and its results are of types held.

    So are all of ai.onnx.ml: ``onnx.reference`` has another idea of the scores of trees, and gives
    integers where the operators give floats.
    """
    if (kind := qualified(proto)) not in IMPORTERS and proto.domain != ML:
        return False
    known = [v for v in operands.values() if isinstance(v, Known)]
    if len(known) < len(operands):
        return False
    if not all(v.array.size or kind in ABSENT_IF_EMPTY for v in known):
        return False
    kinds = {v.onnx_type for v in known}
    held = COMPUTED | {onnx.TensorProto.UINT8} if kind in BYTES else COMPUTED
    if not kinds <= held or not (FLOAT in kinds or proto.domain == ML):
        return False
    return {element for element, _ in inferred_types(proto, operands, opsets).values()} <= held


def evaluated(
    proto: onnx.NodeProto, operands: Mapping[str, Value], scope: Scope, bind: Bind
) -> dict[str, Value]:
    """The values of the node's outputs.

    A node that the importer refuses is evaluated by onnxruntime, or ``Unsupported`` is raised.
    """
    admit(proto, operands, scope.opsets, scope.meter)
    plain = {name: Known(name, cast(Known, value).array) for name, value in operands.items()}
    inner = replace(scope, values=dict[str, Value](plain), problems=[], claimed=set(), shared={})
    try:
        made = importer_of(proto)(Call(proto, inner))
        results = bind(proto, made if isinstance(made, Sequence) else [made], inner)
    except Unsupported as reason:
        results = handed_over(proto, inner, reason)
    try:
        return {
            name: Known(name, computed(value, scope.meter)) if isinstance(value, Node) else value
            for name, value in results.items()
            if name
        }
    except BackendError as error:
        raise Unsupported(f"it is constant, but cannot be evaluated: {error}") from error


def importer_of(proto: onnx.NodeProto) -> Importer:
    """The importer of the node.  Raises ``Unsupported``."""
    if (kind := qualified(proto)) not in IMPORTERS:
        raise Unsupported("there is no importer for this operator")
    return IMPORTERS[kind]


def handed_over(proto: onnx.NodeProto, scope: Scope, reason: Unsupported) -> dict[str, Value]:
    """External nodes for what the importer refused.  Raises its reason where they may not be."""
    results = left_to_fallback(proto, scope, str(reason)) if scope.fallback else None
    if results is None:
        raise reason
    return results


def computed(node: Node, meter: Meter) -> Array:
    """The value of a node that depends on Constants only."""

    def evaluate(step: Node, operands: Sequence[Array]) -> Array:
        if not isinstance(step, Constant):
            meter.reserve(step.name, step.type.shape, step.type.dtype.numpy.itemsize)
            meter.spend(work_of(step))
        return step.evaluate(*operands)

    (result,) = Execution(Graph((), ((node.name, node),)), [node], evaluate).run()
    meter.made(node.name, result.shape, result.itemsize)
    return result
