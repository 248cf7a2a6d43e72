"""Definitions of the operators that onnxruntime fuses when it saves an optimized model.

Source: onnxruntime's ContribOperators.md (FusedConv, FusedGemm, FusedMatMul).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from quantglow.frontend.nodes.context import Call, Scope, Unsupported, qualified

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


def definition_of_fused(proto: onnx.NodeProto, scope: Scope) -> onnx.FunctionProto | None:
    """The operator by standard ones; None for another operator.  Raises ``Unsupported``."""
    make = DEFINITIONS.get(qualified(proto))
    if make is None:
        return None
    definition, call = Definition(), Call(proto, scope)
    names = [f"operand{i}" for i in range(len(proto.input))]
    operands = [name if given else "" for name, given in zip(names, proto.input, strict=True)]
    result = make(call, definition, operands)
    opsets = [helper.make_opsetid("", scope.opset)]
    return helper.make_function(
        proto.domain, proto.op_type, names, [result], definition.nodes, opsets
    )


def fused_conv(call: Call, definition: Definition, operands: Sequence[str]) -> str:
    """``activation(Conv(X, W, B) + Z)``"""
    made = definition.add("Conv", *operands[:3], **attributes(call))
    if call.has(3):
        made = definition.add("Add", made, operands[3])
    names = PARAMETERS.get(call.text("activation", ""), ())
    given = call.attributes.get("activation_params", ())
    return activated(call, definition, made, dict(zip(names, given, strict=False)))


def fused_gemm(call: Call, definition: Definition, operands: Sequence[str]) -> str:
    """``activation(Gemm(A, B, C))``"""
    made = definition.add("Gemm", *operands, **attributes(call))
    names = PARAMETERS.get(call.text("activation", ""), ())
    given = {name: call.attributes.get(f"activation_{name}") for name in names}
    return activated(call, definition, made, {n: v for n, v in given.items() if v is not None})


def fused_matmul(call: Call, definition: Definition, operands: Sequence[str]) -> str:
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
    made = definition.add("MatMul", *moved)
    alpha = call.number("alpha", 1.0)
    return made if alpha == 1 else definition.add("Mul", made, definition.constant(alpha))


def attributes(call: Call) -> dict[str, Any]:
    """The attributes of the standard operator."""
    known = onnx.defs.get_schema(ATTRIBUTES[call.proto.op_type]).attributes
    return {name: value for name, value in call.attributes.items() if name in known}


def activated(call: Call, definition: Definition, x: str, given: Mapping[str, float]) -> str:
    """The activation of x; attributes that are not given have ONNX's defaults."""
    op_type = call.text("activation", "")
    if not op_type:
        return x
    if op_type not in PARAMETERS:
        raise Unsupported(f"quantglow does not know its activation {op_type!r}")
    if op_type == "Clip":  # In new opsets its bounds are operands.
        for bound, operator in {"min": "Max", "max": "Min"}.items():
            x = (
                definition.add(operator, x, definition.constant(given[bound]))
                if bound in given
                else x
            )
        return x
    return definition.add(op_type, x, **given)


DEFINITIONS: dict[str, Callable[[Call, Definition, Sequence[str]], str]] = {
    "com.microsoft.FusedConv": fused_conv,
    "com.microsoft.FusedGemm": fused_gemm,
    "com.microsoft.FusedMatMul": fused_matmul,
}
"""Operator -> the function that writes its definition, and gives the name of the result."""
