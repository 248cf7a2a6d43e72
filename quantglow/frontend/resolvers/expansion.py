"""Operators that the ONNX standard defines by other operators are imported as their definition;
so are those that onnxruntime fuses.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import onnx

from quantglow.errors import ImportBudgetError, ModelError
from quantglow.frontend.nodes.context import Scope, Unsupported
from quantglow.frontend.nodes.folding import FAILURES, INFERENCE_FAILURES, typed
from quantglow.frontend.nodes.values import Value
from quantglow.frontend.reading.proto import opsets_of
from quantglow.frontend.resolvers.fused_operators import definition_of_fused

ImportNodes = Callable[[Iterable[onnx.NodeProto], Scope], None]


def expanded(
    proto: onnx.NodeProto, scope: Scope, import_nodes: ImportNodes
) -> dict[str, Value] | None:
    """The results of the operator's definition, None if it has none.

    Raises ``Unsupported`` if a node of the definition cannot be imported: then nothing of it is.
    """
    function = definition(proto, scope)
    if function is None:
        return None
    names = renaming(proto, function, scope)
    nodes = [renamed(node, names, attributes_of(proto, function)) for node in function.node]
    inner = replace(
        scope,
        opsets={**scope.opsets, **opsets_of(function)},
        used=scope.used | {name for node in nodes for name in node.input},
        values=ChainMap({}, scope.values),
        problems=[],
        fallback=False,
        in_definition=True,
    )
    try:
        import_nodes([node for node in nodes if any(node.output)], inner)
    except ImportBudgetError:
        raise
    except ModelError as error:
        raise Unsupported(f"its definition cannot be imported: {error}") from error
    if inner.problems:
        raise Unsupported(f"its definition has {inner.problems[0]}")
    return {name: inner.values[name] for name in proto.output if name}


def definition(proto: onnx.NodeProto, scope: Scope) -> onnx.FunctionProto | None:
    """The function body of the operator's version, for these operand types.

    Raises ``Unsupported`` for a fused operator whose activation is unknown.
    """
    if (fused := definition_of_fused(proto, scope)) is not None:
        return fused
    try:
        # The type stubs lack some of its methods.
        schema: Any = onnx.defs.get_schema(proto.op_type, scope.opsets[proto.domain], proto.domain)
        if schema.has_function:
            version = newest(schema.function_opset_versions, scope.opset)
            text = schema.get_function_with_opset_version(version)
        elif schema.has_context_dependent_function:
            version = newest(schema.context_dependent_function_opset_versions, scope.opset)
            types = [operand_type(name, scope) for name in proto.input]
            text = schema.get_context_dependent_function_with_opset_version(
                version, proto.SerializeToString(), types
            )
        else:
            return None
    except (*INFERENCE_FAILURES, *FAILURES):
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(text)
    return function if function.node else None


def newest(versions: Iterable[int], opset: int) -> int:
    """The newest version that the model may use, else the oldest there is."""
    found = sorted(versions)
    return max((v for v in found if v <= opset), default=found[0])


def operand_type(name: str, scope: Scope) -> bytes:
    kind = typed(name, scope.values[name]).type if name else onnx.TypeProto()
    return bytes(kind.SerializeToString())


def renaming(proto: onnx.NodeProto, function: onnx.FunctionProto, scope: Scope) -> dict[str, str]:
    """Names of the definition -> names of the model: operands, results, and new ones."""
    names = {"": "", **dict.fromkeys(function.input, "")}
    names.update(zip(function.input, proto.input, strict=False))
    stem = next(name for name in proto.output if name)
    inside = {name for node in function.node for name in node.output}
    for name in sorted(inside - names.keys()):
        candidate = f"{stem}:{name}"
        while candidate in scope.values or candidate in scope.reserved:
            candidate += "'"
        names[name] = candidate
    wanted = zip(function.output, proto.output, strict=False)
    names.update((inner, outer) for inner, outer in wanted if outer)
    return names


def attributes_of(
    proto: onnx.NodeProto, function: onnx.FunctionProto
) -> dict[str, onnx.AttributeProto]:
    """Attributes that the definition may refer to: the node's own, else their defaults."""
    found = {a.name: a for a in function.attribute_proto}
    try:
        schema = onnx.defs.get_schema(proto.op_type, domain=proto.domain)
        defaults = {n: a.default_value for n, a in schema.attributes.items()}
        found.update({n: a for n, a in defaults.items() if a.type})
    except onnx.defs.SchemaError:
        pass
    return {**found, **{a.name: a for a in proto.attribute}}


def renamed(
    node: onnx.NodeProto,
    names: Mapping[str, str],
    attributes: Mapping[str, onnx.AttributeProto],
) -> onnx.NodeProto:
    """A node of the definition in the terms of the model."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[:] = [names.get(name, name) for name in node.input]
    made.output[:] = [names.get(name, name) for name in node.output]
    del made.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name and attribute.ref_attr_name not in attributes:
            continue
        copy = made.attribute.add()
        copy.CopyFrom(attributes.get(attribute.ref_attr_name, attribute))
        copy.name = attribute.name
        if copy.HasField("g"):
            inner = [renamed(n, names, attributes) for n in copy.g.node]
            del copy.g.node[:]
            copy.g.node.extend(inner)
            for output in copy.g.output:
                output.name = names.get(output.name, output.name)
    return made
