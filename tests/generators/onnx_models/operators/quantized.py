"""Operators of quantized tensors.

onnxruntime may round ties differently, so no other operator reads a rounded result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.generators.onnx_models.drawing import INT8, INT32, UINT8, Drawing, Value
from tests.generators.onnx_models.operators.family import draws
from tests.generators.onnx_models.operators.operands import numbers
from tests.generators.onnx_models.operators.windows import refuse_outside, window


def zero_point(d: Drawing, element: int, *shape: int) -> Value:
    return numbers(d, element, shape, -20, 20)


def scale(d: Drawing, *shape: int) -> Value:
    return d.uniform(0.01, 0.05, *shape)


@draws("QuantizeLinear", often=4, is_quantized=True)
def quantize(d: Drawing) -> object:
    x = d.floats()
    if x.rank > 1 and d.chance(0.3):
        n = x.shape[1]
        return d.end("QuantizeLinear", x, scale(d, n), zero_point(d, INT8, n), axis=1)
    return d.end("QuantizeLinear", x, scale(d), zero_point(d, d.choose((INT8, UINT8))))


@draws("DequantizeLinear", often=4, is_quantized=True)
def dequantize(d: Drawing) -> object:
    x = d.of((INT8, UINT8))
    return d.node("DequantizeLinear", x, scale(d), zero_point(d, x.element))


@draws("DynamicQuantizeLinear", often=4, is_quantized=True)
def dynamic_quantize(d: Drawing) -> object:
    x = d.floats()
    built = d.add("DynamicQuantizeLinear", (x,), 3, {})
    d.ends.extend(built)
    return built


@draws("MatMulInteger", often=4, is_quantized=True)
def matmul_integer(d: Drawing) -> object:
    x = d.of((INT8, UINT8), 2, 3)
    w = numbers(d, INT8, (x.shape[-1], d.choose((1, 4, 9))), -127, 127)
    zeros = (zero_point(d, x.element),) if d.chance(0.7) else ()
    return d.node("MatMulInteger", x, w, *zeros)


@draws("ConvInteger", often=4, is_quantized=True)
def conv_integer(d: Drawing) -> object:
    x = d.of((UINT8,), 4)
    w, attributes = kernel(d, x)
    zeros = (zero_point(d, x.element),) if d.chance(0.7) else ()
    return d.node("ConvInteger", x, w, *zeros, **attributes)


def kernel(d: Drawing, x: Value) -> tuple[Value, dict[str, Any]]:
    sizes = [d.integer(1, min(size + 1, 3)) for size in x.shape[2:]]
    attributes = window(d, sizes)
    refuse_outside(attributes, sizes, x.shape[2:])
    w = numbers(d, INT8, (d.integer(1, 5), x.shape[1], *sizes), -127, 127)
    return w, {"kernel_shape": sizes, **attributes}


@draws("QLinearConv", often=4, is_quantized=True)
def qlinear_conv(d: Drawing) -> object:
    x = d.of((INT8, UINT8), 4)
    w, attributes = kernel(d, x)
    outputs = w.shape[0]
    zero = d.constant(np.int8(0))
    bias = (numbers(d, INT32, (outputs,), -2000, 2000),) if d.chance(0.6) else ()
    operands = (x, scale(d), zero_point(d, x.element), w, scale(d), zero)
    result = (d.constant(np.float32(0.5)), zero_point(d, x.element))
    return d.end("QLinearConv", *operands, *result, *bias, **attributes)


@draws("QLinearMatMul", often=4, is_quantized=True)
def qlinear_matmul(d: Drawing) -> object:
    x = d.of((INT8, UINT8), 2, 3)
    w = numbers(d, INT8, (x.shape[-1], d.choose((1, 4, 9))), -127, 127)
    operands = (x, scale(d), zero_point(d, x.element), w, scale(d), d.constant(np.int8(0)))
    return d.end("QLinearMatMul", *operands, d.constant(np.float32(0.5)), zero_point(d, x.element))
