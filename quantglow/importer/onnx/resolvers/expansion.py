"""Expansion of operators to their definitions in standard operators.

The ONNX standard defines some operators by others.  The definitions of those that onnxruntime fuses
when it saves an optimized model are here; source: onnxruntime's ContribOperators.md (FusedConv,
FusedGemm, FusedMatMul).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from quantglow.importer.onnx.domains import MICROSOFT
from quantglow.importer.onnx.nodes.context import Call, ImportScope, Unsupported, qualify
from quantglow.importer.onnx.nodes.folding import FAILURES, INFERENCE_FAILURES, value_info
from quantglow.importer.onnx.nodes.values import Value
from quantglow.importer.onnx.reading.proto import opset_versions
from quantglow.support.errors import ImportBudgetError, ModelError

PARAMETERS: dict[str, tuple[str, ...]] = {
    "Clip": ("min", "max"),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
"""Activation -> its attributes, in the order of FusedConv's ``activation_params``."""

ATTRIBUTES = {"FusedConv": "Conv", "FusedGemm": "Gemm"}
"""Fused operator -> the standard one whose attributes it has, too."""

ImportNodes = Callable[[Iterable[onnx.NodeProto], ImportScope], None]


def expand(
    proto: onnx.NodeProto, scope: ImportScope, import_nodes: ImportNodes
) -> dict[str, Value] | None:
    """The results of the operator's definition, None if it has none.

    Raises ``Unsupported`` if a node of the definition cannot be imported: then nothing of it is.
    """
    function = definition(proto, scope)
    if function is None:
        return None
    names = _renaming(proto, function, scope)
    nodes = [_rename(node, names, _function_attributes(proto, function)) for node in function.node]
    inner = replace(
        scope,
        opsets={**scope.opsets, **opset_versions(function)},
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


def definition(proto: onnx.NodeProto, scope: ImportScope) -> onnx.FunctionProto | None:
    """The function body of the operator's version, for these operand types.

    Raises ``Unsupported`` for a fused operator whose activation is unknown.
    """
    if (fused := _definition_of_fused(proto, scope)) is not None:
        return fused
    try:
        # The type stubs lack some of its methods.
        schema: Any = onnx.defs.get_schema(proto.op_type, scope.opsets[proto.domain], proto.domain)
        if schema.has_function:
            version = _newest(schema.function_opset_versions, scope.opset)
            text = schema.get_function_with_opset_version(version)
        elif schema.has_context_dependent_function:
            version = _newest(schema.context_dependent_function_opset_versions, scope.opset)
            types = [_operand_type(name, scope) for name in proto.input]
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


def _newest(versions: Iterable[int], opset: int) -> int:
    """The newest version that the model may use, else the oldest there is."""
    ordered = sorted(versions)
    return max((v for v in ordered if v <= opset), default=ordered[0])


def _operand_type(name: str, scope: ImportScope) -> bytes:
    kind = value_info(name, scope.values[name]).type if name else onnx.TypeProto()
    return bytes(kind.SerializeToString())


def _renaming(
    proto: onnx.NodeProto, function: onnx.FunctionProto, scope: ImportScope
) -> dict[str, str]:
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
    pairs = zip(function.output, proto.output, strict=False)
    names.update((inner, outer) for inner, outer in pairs if outer)
    return names


def _function_attributes(
    proto: onnx.NodeProto, function: onnx.FunctionProto
) -> dict[str, onnx.AttributeProto]:
    """Attributes that the definition may refer to: the node's own, else their defaults."""
    inherited = {a.name: a for a in function.attribute_proto}
    try:
        schema = onnx.defs.get_schema(proto.op_type, domain=proto.domain)
        defaults = {n: a.default_value for n, a in schema.attributes.items()}
        inherited.update({n: a for n, a in defaults.items() if a.type})
    except onnx.defs.SchemaError:
        pass
    return {**inherited, **{a.name: a for a in proto.attribute}}


def _rename(
    node: onnx.NodeProto,
    names: Mapping[str, str],
    attributes: Mapping[str, onnx.AttributeProto],
) -> onnx.NodeProto:
    """A node of the definition in the terms of the model."""
    result = onnx.NodeProto()
    result.CopyFrom(node)
    result.input[:] = [names.get(name, name) for name in node.input]
    result.output[:] = [names.get(name, name) for name in node.output]
    del result.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name and attribute.ref_attr_name not in attributes:
            continue
        copy = result.attribute.add()
        copy.CopyFrom(attributes.get(attribute.ref_attr_name, attribute))
        copy.name = attribute.name
        if copy.HasField("g"):
            inner = [_rename(n, names, attributes) for n in copy.g.node]
            del copy.g.node[:]
            copy.g.node.extend(inner)
            for output in copy.g.output:
                output.name = names.get(output.name, output.name)
    return result


class Definition:
    """The nodes of a definition under construction."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []

    def add(self, op_type: str, *operands: str, **attributes: Any) -> str:
        """The name of a new node's result."""
        name = f"step{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, operands, [name], **attributes))
        return name

    def constant(self, value: float) -> str:
        """The name of a scalar."""
        array = np.array(value, np.float32)
        return self.add("Constant", value=numpy_helper.from_array(array))


def _definition_of_fused(proto: onnx.NodeProto, scope: ImportScope) -> onnx.FunctionProto | None:
    """The operator by standard ones; None for another operator.  Raises ``Unsupported``."""
    make = DEFINITIONS.get(qualify(proto))
    if make is None:
        return None
    definition, call = Definition(), Call(proto, scope)
    names = [f"operand{i}" for i in range(len(proto.input))]
    operands = [name if operand else "" for name, operand in zip(names, proto.input, strict=True)]
    result = make(call, definition, operands)
    opsets = [helper.make_opsetid("", scope.opset)]
    return helper.make_function(
        proto.domain, proto.op_type, names, [result], definition.nodes, opsets
    )


def _fuse_conv(call: Call, definition: Definition, operands: Sequence[str]) -> str:
    """``activation(Conv(X, W, B) + Z)``"""
    result = definition.add("Conv", *operands[:3], **attributes(call))
    if call.has(3):
        result = definition.add("Add", result, operands[3])
    names = PARAMETERS.get(call.text("activation", ""), ())
    values = call.attributes.get("activation_params", ())
    return _activate(call, definition, result, dict(zip(names, values, strict=False)))


def _fuse_gemm(call: Call, definition: Definition, operands: Sequence[str]) -> str:
    """``activation(Gemm(A, B, C))``"""
    result = definition.add("Gemm", *operands, **attributes(call))
    names = PARAMETERS.get(call.text("activation", ""), ())
    values = {name: call.attributes.get(f"activation_{name}") for name in names}
    return _activate(call, definition, result, {n: v for n, v in values.items() if v is not None})


def _fuse_matmul(call: Call, definition: Definition, operands: Sequence[str]) -> str:
    """``alpha * A' @ B'``; ``transBatchA`` moves the first axis of A behind the batch."""
    moved = []
    for position, name in enumerate("AB"):
        rank = len(call.shape(position))
        axes = list(range(rank))
        if call.integer(f"transBatch{name}", 0) and rank > 1:
            axes = [*axes[1:-1], axes[0], axes[-1]]
        if call.integer(f"trans{name}", 0) and rank > 1:
            axes[-2:] = axes[:-3:-1]
        is_moved = axes != sorted(axes)
        operand = operands[position]
        moved.append(definition.add("Transpose", operand, perm=axes) if is_moved else operand)
    product = definition.add("MatMul", *moved)
    alpha = call.number("alpha", 1.0)
    return product if alpha == 1 else definition.add("Mul", product, definition.constant(alpha))


def attributes(call: Call) -> dict[str, Any]:
    """The attributes of the standard operator."""
    accepted = onnx.defs.get_schema(ATTRIBUTES[call.proto.op_type]).attributes
    return {name: value for name, value in call.attributes.items() if name in accepted}


def _activate(call: Call, definition: Definition, x: str, parameters: Mapping[str, float]) -> str:
    """The activation of x; attributes that are not given have ONNX's defaults."""
    op_type = call.text("activation", "")
    if not op_type:
        return x
    if op_type not in PARAMETERS:
        raise Unsupported(f"quantglow does not know its activation {op_type!r}")
    if op_type == "Clip":  # In new opsets its bounds are operands.
        for bound, operator in {"min": "Max", "max": "Min"}.items():
            x = (
                definition.add(operator, x, definition.constant(parameters[bound]))
                if bound in parameters
                else x
            )
        return x
    return definition.add(op_type, x, **parameters)


DEFINITIONS: dict[str, Callable[[Call, Definition, Sequence[str]], str]] = {
    f"{MICROSOFT}.FusedConv": _fuse_conv,
    f"{MICROSOFT}.FusedGemm": _fuse_gemm,
    f"{MICROSOFT}.FusedMatMul": _fuse_matmul,
}
"""Operator -> the function that writes its definition, and gives the name of the result."""
