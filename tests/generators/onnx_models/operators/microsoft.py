"""Operators that onnxruntime's dynamic quantizer writes, and the first layer of BERT.

Codes of values that are computed may be the next ones by rounding, so no other operator reads a
result behind such codes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.generators.onnx_models.drawing import (
    FLOAT,
    INT8,
    INT32,
    MICROSOFT,
    UINT8,
    Drawing,
    Rejected,
    Value,
)
from tests.generators.onnx_models.operators.family import draws
from tests.generators.onnx_models.operators.operands import numbers

MOST_STEPS = 6


def coded(d: Drawing, element: int, *shape: int, channels: int = 1) -> tuple[Value, Value, Value]:
    """Codes, and a scale and a zero point for each channel (last axis); signed codes have 7 bits,
    since onnxruntime saturates sums of two products without VNNI."""
    most = 63 if element == INT8 else 255
    codes = numbers(d, element, shape, -most, most)
    sizes = (channels,) if channels > 1 else ()
    point = 0 if element == INT8 else 128
    kind = np.int8 if element == INT8 else np.uint8
    scales = d.uniform(0.002, 0.01, *sizes)
    return codes, scales, d.constant(np.full(sizes, point, kind))


def ended(d: Drawing, op: str, operands: list[Value | None], *results: Any, **more: Any) -> Value:
    """The last result of an operator, all of whose results are outputs that no node reads."""
    built = d.classical(op, operands, *results, domain=MICROSOFT, **more)
    d.ends.extend(d.values[-len(results) :])
    del d.values[-len(results) :]
    return built


@draws("DynamicQuantizeMatMul", often=2, is_quantized=True)
def dynamic_product(d: Drawing) -> object:
    """The first operand is fed, so that its codes are the same everywhere."""
    x = fed(d, 2, 3)
    columns = d.choose((1, 4, 17))
    element = d.choose((INT8, UINT8))
    w, scales, points = coded(
        d, element, x.shape[-1], columns, channels=columns if d.chance(0.5) else 1
    )
    operands: list[Value | None] = [x, w, scales, points if d.chance(0.7) else None]
    if d.chance(0.5):
        operands.append(d.normal(columns))
    result = (FLOAT, (*x.shape[:-1], columns))
    return ended(d, "DynamicQuantizeMatMul", operands, result)


def fed(d: Drawing, *ranks: int) -> Value:
    """An input of the graph."""
    inputs = {value.name for value in d.inputs}
    return d.pick(lambda v: v.name in inputs and v.element == FLOAT and v.rank in ranks)


@draws("MatMulIntegerToFloat", often=2, is_quantized=True)
def integer_product(d: Drawing) -> object:
    x = d.of((UINT8,), 2, 3)
    columns = d.choose((1, 4, 17))
    w, scales, points = coded(d, INT8, x.shape[-1], columns, channels=d.choose((1, columns)))
    operands = [x, w, d.uniform(0.01, 0.05), scales, numbers(d, UINT8, (), 0, 9), points]
    if d.chance(0.5):
        operands.append(d.normal(columns))
    result = (FLOAT, (*x.shape[:-1], columns))
    return d.classical("MatMulIntegerToFloat", operands, result, domain=MICROSOFT)


@draws("QAttention", often=3, is_quantized=True)
def quantized_attention(d: Drawing) -> object:
    x = d.of((UINT8,), 3)
    batch, steps, width = x.shape
    heads, size = d.choose((1, 2, 3)), d.choose((1, 4, 5))
    hidden, past = heads * size, d.choose((0, 0, 3))
    channels = d.choose((1, 3 * hidden))
    w, scales, points = coded(d, d.choose((INT8, UINT8)), width, 3 * hidden, channels=channels)
    mask = numbers(d, INT32, (batch, past + steps), 0, 1) if d.chance(0.4) else None
    operands = [x, w, d.normal(3 * hidden), d.uniform(0.01, 0.05), scales, mask]
    operands += [numbers(d, UINT8, (), 0, 9), points]
    if past:
        operands.append(d.normal(2, batch, heads, past, size))
    results = [(FLOAT, (batch, steps, hidden))]
    if past or d.chance(0.3):
        results.append((FLOAT, (2, batch, heads, past + steps, size)))
    more = {"num_heads": heads, **d.some({"unidirectional": (0, 1), "scale": (0.5,)})}
    return d.classical("QAttention", operands, *results, domain=MICROSOFT, **more)


@draws("DynamicQuantizeLSTM", often=2, is_quantized=True)
def quantized_lstm(d: Drawing) -> object:
    x = fed(d, 3)
    if x.shape[0] > MOST_STEPS:
        raise Rejected("too many steps")
    steps, batch, width = x.shape
    hidden, direction = d.choose((1, 4, 5)), d.choose(("forward", "reverse", "bidirectional"))
    count = 2 if direction == "bidirectional" else 1

    def weights(rows: int) -> tuple[Value, Value, Value]:
        codes, _, _ = coded(d, INT8, count, rows, 4 * hidden)
        sizes = d.choose(((count,), (count, 4 * hidden)))
        return codes, d.uniform(0.002, 0.01, *sizes), d.constant(np.zeros(sizes, np.int8))

    def maybe(*shape: int) -> Value | None:
        return d.normal(*shape) if d.chance(0.4) else None

    w, r = weights(width), weights(hidden)
    states = [maybe(count, batch, hidden) for _ in range(2)]
    bias, peepholes = maybe(count, 8 * hidden), maybe(count, 3 * hidden)
    operands = [x, w[0], r[0], bias, None, *states, peepholes, *w[1:], *r[1:]]
    results = [(FLOAT, (steps, count, batch, hidden)), *[(FLOAT, (count, batch, hidden))] * 2]
    more = {"hidden_size": hidden, "direction": direction}
    return ended(d, "DynamicQuantizeLSTM", operands, *results, **more)


@draws("EmbedLayerNormalization", "QEmbedLayerNormalization", often=1.5)
def embeddings(d: Drawing) -> object:
    words, places, kinds, width = d.choose((1, 4, 9)), 17, 2, d.choose((1, 4, 16))
    inputs = d.of((INT32,), 2)
    if inputs.shape[1] > places:
        raise Rejected("too many steps")
    shape = inputs.shape
    has_kinds = d.chance(0.6)
    mask = numbers(d, INT32, shape, 0, 1) if d.chance(0.5) else None
    ids = [below(d, inputs, words), below(d, inputs, kinds) if has_kinds else None]
    sizes = [(words, width), (places, width), (kinds, width), (width,), (width,)]
    op = d.choose(("EmbedLayerNormalization", "QEmbedLayerNormalization"))
    results = [(FLOAT, (*shape, width)), (INT32, shape[:1])]
    more = d.some({"epsilon": (1e-3, 1e-5)})
    if op == "QEmbedLayerNormalization":
        tables = [coded(d, UINT8, *size) for size in sizes]
        operands = [*ids, *(t[0] for t in tables), mask]
        operands += [t[1] for t in tables] + [t[2] for t in tables]
        for position in (4, 10, 15) if not has_kinds else ():
            operands[position] = None
        return d.classical(op, operands, *results, domain=MICROSOFT, **more)
    floats: list[Value | None] = [d.normal(*size) for size in sizes]
    if not has_kinds:
        floats[2] = None
    operands = [*ids, *floats, mask]
    if d.chance(0.3):
        operands.append(numbers(d, INT32, shape, 0, places - 1))
    if d.chance(0.3):
        results.append((FLOAT, (*shape, width)))
    return d.classical(op, operands, *results, domain=MICROSOFT, **more)


def below(d: Drawing, x: Value, count: int) -> Value:
    """Indices from 0 to ``count`` - 1."""
    return d.inner("Mod", x, d.constant(np.int32(count)))
