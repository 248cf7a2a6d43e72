"""ONNX's shape inference of whole models, without a crash that it has."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from quantglow.frontend.reading.proto import every_node, graphs_of

UNCHECKED = frozenset(
    {"DictVectorizer", "EyeLike", "LabelEncoder", "RegexFullMatch", "TreeEnsemble"}
)
"""Operators whose inference reads the type of an operand that may have none.  In onnx 1.23, that
ends the process."""


def inferred(
    model: onnx.ModelProto,
    *,
    strict: bool = False,
    data_prop: bool = False,
    check_type: bool = False,
) -> onnx.ModelProto:
    """The model with the types of its values, as far as they are known.

    Raises ``InferenceError`` and what else is in ``INFERENCE_FAILURES``.

    ``strict``: raise ``InferenceError`` for operands that do not fit.  ``data_prop``: compute small
    integers that decide shapes.  ``check_type``: check element types; values without one fit.
    """
    names = {n for node in every_node(model) if node.op_type in UNCHECKED for n in node.input}
    if names:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        for graph in graphs_of(copy):
            give_types(graph, names)
        model = copy
    try:
        return onnx.shape_inference.infer_shapes(model, check_type, strict, data_prop)
    except ValueError as error:  # an element type that ONNX does not have
        raise onnx.shape_inference.InferenceError(str(error)) from error


def give_types(graph: onnx.GraphProto, names: Iterable[str]) -> None:
    """Declare values of a graph without a type, if it has them: with an empty type, which any
    inferred one replaces.
    """
    made = {name for node in graph.node for name in node.output}
    infos = (*graph.input, *graph.value_info, *graph.output)
    for info in infos:
        if info.name in names:
            info.type.SetInParent()
    for name in sorted(made.intersection(names) - {info.name for info in infos}):
        graph.value_info.add(name=name).type.SetInParent()
