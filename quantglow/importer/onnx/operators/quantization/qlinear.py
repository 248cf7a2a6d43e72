"""Operators on integers that carry their parameters as operands: QLinearConv, QLinearAdd, …

Each is what its definition says: DequantizeLinear of the operands, the float operator,
QuantizeLinear of the result.  They become one integer operator again where such chains do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from quantglow.importer.onnx.domains import MICROSOFT
from quantglow.importer.onnx.nodes.context import Call, ImportScope, Unsupported
from quantglow.importer.onnx.nodes.values import Coded, Value, as_float32
from quantglow.importer.onnx.operators.quantization.linear import Run, spread_along


@dataclass(frozen=True)
class Form:
    """The float operator, and where scale and zero point stand: behind each operand, and from
    ``result`` on."""

    op_type: str
    operands: tuple[int, ...]
    result: int
    plain: tuple[int, ...] = ()
    """Operands before these that are not integers of a scale: the condition of Where."""
    bias: int | None = None
    """The int32 operand whose scale is the product of the other operands' scales."""
    channels: int = 1
    """The axis of per-axis parameters of the second operand."""


FORMS: dict[str, Form] = {
    "QLinearConv": Form("Conv", (0, 3), 6, bias=8, channels=0),
    "QLinearMatMul": Form("MatMul", (0, 3), 6, channels=-1),
    f"{MICROSOFT}.QLinearAdd": Form("Add", (0, 3), 6),
    f"{MICROSOFT}.QLinearAveragePool": Form("AveragePool", (0,), 3),
    f"{MICROSOFT}.QLinearConv": Form("Conv", (0, 3), 6, bias=8, channels=0),
    f"{MICROSOFT}.QLinearGlobalAveragePool": Form("GlobalAveragePool", (0,), 3),
    f"{MICROSOFT}.QLinearLeakyRelu": Form("LeakyRelu", (0,), 3),
    f"{MICROSOFT}.QLinearMul": Form("Mul", (0, 3), 6),
    f"{MICROSOFT}.QLinearReduceMean": Form("ReduceMean", (0,), 3),
    f"{MICROSOFT}.QLinearSigmoid": Form("Sigmoid", (0,), 3),
    f"{MICROSOFT}.QLinearSoftmax": Form("Softmax", (0,), 3),
    f"{MICROSOFT}.QLinearWhere": Form("Where", (1, 4), 7, plain=(0,)),
    f"{MICROSOFT}.QGemm": Form("Gemm", (0, 3), 7, bias=6),
}
CONCAT = f"{MICROSOFT}.QLinearConcat"
"""Its parts come in threes behind the result's parameters."""

QLINEAR_ATTRIBUTES = frozenset({"channels_last", "opset"})
"""Attributes that the float operator does not have."""


def import_qlinear(proto: onnx.NodeProto, scope: ImportScope, run: Run) -> dict[str, Value] | None:
    """The results of an operator of ``FORMS``, each of its steps imported by ``run``; else None."""
    kind = f"{proto.domain}.{proto.op_type}" if proto.domain else proto.op_type
    if kind == CONCAT:
        form: Form | None = Form("Concat", tuple(range(2, len(proto.input), 3)), 0)
    else:
        form = FORMS.get(kind)
    if form is None:
        return None
    steps = QLinearNodes(Call(proto, scope), form)
    for step in steps.nodes():
        scope.values.update(run(step, scope))
    return {proto.output[0]: scope.values[proto.output[0]]}


def import_float_product(
    proto: onnx.NodeProto, scope: ImportScope, run: Run
) -> dict[str, Value] | None:
    """DynamicQuantizeMatMul and MatMulIntegerToFloat as MatMulInteger and what is around it; None
    for other operators."""
    if proto.domain != MICROSOFT or proto.op_type not in FLOAT_PRODUCTS:
        return None
    steps = QLinearNodes(Call(proto, scope), Form("MatMul", (0, 1), 0))
    for step in steps.float_product():
        scope.values.update(run(step, scope))
    return {proto.output[0]: scope.values[proto.output[0]]}


FLOAT_PRODUCTS = {"DynamicQuantizeMatMul": (2, 3, 4), "MatMulIntegerToFloat": (3, 5, 6)}
"""Positions of the scale and the zero point of the second operand, and of the bias."""


def is_of_steps(kind: str) -> bool:
    """Whether this module imports an operator by the steps of its definition."""
    products = (f"{MICROSOFT}.{name}" for name in FLOAT_PRODUCTS)
    return kind in FORMS or kind == CONCAT or kind in products


@dataclass
class QLinearNodes:
    """The operator as the nodes of its definition."""

    call: Call
    form: Form
    claimed: set[str] = field(default_factory=set)

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """Operands, the float operator on channels-first images, the result."""
        call, form = self.call, self.form
        _check_softmax(call)
        inputs = [call.value_name(position) for position in form.plain]
        for position in form.operands:
            real = self.name("real")
            yield self.dequantize(position, real)
            inputs.append(real)
        if form.bias is not None and call.has(form.bias):
            inputs.append(self.bias(form.bias))
        last = bool(call.integer("channels_last", 0)) and len(call.shape(form.operands[0])) > 2
        if last:
            yield self.transpose(inputs[0], (moved := self.name("nchw")), first=True)
            inputs[0] = moved
        result = self.name("sum")
        if not call.has(form.result):
            yield self.compute(inputs, str(call.proto.output[0]))
            return
        yield self.compute(inputs, result)
        if last:
            yield self.transpose(result, (moved := self.name("nhwc")), first=False)
            result = moved
        yield self.quantize(result)

    def float_product(self) -> Iterator[onnx.NodeProto]:
        """``float(sum) * (scale * scale) + bias`` of integers that may be quantized first."""
        call, make = self.call, onnx.helper.make_node
        scale, zero_point, bias = FLOAT_PRODUCTS[call.proto.op_type]
        x, x_scale, x_point = (self.name(tag) for tag in ("codes", "scale", "zero_point"))
        if call.proto.op_type == "DynamicQuantizeMatMul":
            yield make("DynamicQuantizeLinear", [call.value_name(0)], [x, x_scale, x_point])
        else:
            x, x_scale = call.value_name(0), call.value_name(2)
            x_point = call.value_name(4) if call.has(4) else ""
        w_point = call.value_name(zero_point) if call.has(zero_point) else ""
        integers, sums, scales = (self.name(tag) for tag in ("integers", "sums", "scales"))
        yield make("MatMulInteger", [x, call.value_name(1), x_point, w_point], [integers])
        yield make("Cast", [integers], [sums], to=onnx.TensorProto.FLOAT)
        yield make("Mul", [x_scale, call.value_name(scale)], [scales])
        result = str(call.proto.output[0])
        product = self.name("product") if call.has(bias) else result
        yield make("Mul", [sums, scales], [product])
        if call.has(bias):
            yield make("Add", [product, call.value_name(bias)], [result])

    def name(self, tag: str) -> str:
        """A value name that nothing has."""
        scope, stem = self.call.scope, f"{self.call.proto.output[0]}:{tag}"
        name, number = stem, 1
        while name in scope.values or name in scope.reserved or name in self.claimed:
            number += 1
            name = f"{stem}:{number}"
        self.claimed.add(name)
        return name

    def dequantize(self, position: int, result: str) -> onnx.NodeProto:
        parameters = _dequantized_operands(self.call, range(position, position + 3))
        axis = self.axis() if position == self.form.operands[-1] else 1
        return onnx.helper.make_node("DequantizeLinear", parameters, [result], axis=axis)

    def axis(self) -> int:
        """The axis of per-axis weights."""
        flipped = self.form.op_type == "Gemm" and self.call.integer("transB", 0)
        return 0 if flipped else self.form.channels

    def bias(self, position: int) -> str:
        """The int32 bias with the scale it has by definition, as a value of the model."""
        call = self.call
        codes = call.array(position, "bias").reshape(-1)
        scales = [as_float32(call.array(p + 1, "scale")) for p in self.form.operands]
        alpha = call.number("alpha", 1.0) if self.form.op_type == "Gemm" else 1.0
        product = (alpha * scales[0].astype(np.float64) * scales[1]).astype(np.float32)
        spread = spread_along(product.reshape(-1), codes.shape, 0)
        name = self.name("bias")
        reals = codes.astype(np.float32) * spread
        zeros = np.zeros(codes.shape, np.int32)
        call.scope.values[name] = Coded(name, reals, codes.astype(np.int32), spread, zeros)
        return name

    def transpose(self, x: str, result: str, *, first: bool) -> onnx.NodeProto:
        rank = len(self.call.shape(self.form.operands[0]))
        perm = (0, rank - 1, *range(1, rank - 1)) if first else (0, *range(2, rank), 1)
        return onnx.helper.make_node("Transpose", [x], [result], perm=perm)

    def compute(self, inputs: Sequence[str], result: str) -> onnx.NodeProto:
        node = onnx.helper.make_node(self.form.op_type, inputs, [result])
        node.attribute.extend(
            a for a in self.call.proto.attribute if a.name not in QLINEAR_ATTRIBUTES
        )
        return node

    def quantize(self, x: str) -> onnx.NodeProto:
        parameters = _dequantized_operands(self.call, range(self.form.result, self.form.result + 2))
        return onnx.helper.make_node("QuantizeLinear", [x, *parameters], self.call.proto.output[:1])


def _dequantized_operands(call: Call, positions: Sequence[int]) -> list[str]:
    """Operand names; absent ones at the end are left out."""
    return [call.value_name(p) for p in positions if call.has(p)]


def _check_softmax(call: Call) -> None:
    """Softmax before opset 13 flattened what follows the axis."""
    if call.proto.op_type != "QLinearSoftmax":
        return
    old = call.integer("opset", call.opset) < 13
    axis, rank = call.integer("axis", 1 if old else -1), len(call.shape(0))
    if (old or call.opset < 13) and axis % rank != rank - 1:
        raise Unsupported("opsets before 13 flatten the axes behind its axis")
