"""Every operator that can be exported, float and int8, on drawn operands; and onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

from quantglow.ir import ops
from quantglow.ir.graph.node import Node
from tests.generators.unary_functions import FUNCTIONS
from tests.unit.export.onnx.export_kit import Kit
from tests.unit.export.onnx.export_nodes import (
    antialiased_resize,
    batch_normalization,
    binary,
    concat,
    conv,
    conv_transpose,
    dilated_mean,
    division,
    expand,
    external,
    functions,
    gather,
    gemm,
    grouped_mat_mul,
    layer_normalization,
    loop,
    lrn,
    mat_mul,
    pad,
    pool,
    power,
    prelu,
    product_of_quantized_rows,
    quantize,
    reduction,
    requantize,
    rescale,
    reshape,
    resize,
    rows,
    scatter,
    slice_,
    softmax,
    table,
    top_k,
    unary,
    where,
)

BOTH: dict[str, Callable[[Kit], Node]] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Gemm": gemm,
    "MatMul": mat_mul,
    "Add": binary(ops.Add),
    "Sub": binary(ops.Sub),
    "Mul": binary(ops.Mul),
    "Max": binary(ops.Max),
    "Min": binary(ops.Min),
    "PRelu": prelu,
    "MaxPool": pool(ops.MaxPool, ceil_mode=lambda k: k.choice(True, False)),
    "AveragePool": pool(
        ops.AveragePool,
        out=lambda k: k.out,
        ceil_mode=lambda k: k.choice(True, False),
        count_include_pad=lambda k: k.choice(True, False),
    ),
    "AveragePool-dilated": dilated_mean,
    "ReduceMean": reduction(ops.ReduceMean, rounds=True),
    "ReduceMax": reduction(ops.ReduceMax),
    "ReduceMin": reduction(ops.ReduceMin),
    "Softmax": softmax,
    "LayerNormalization": layer_normalization,
    "Concat": concat,
    "Slice": slice_,
    "Pad": pad,
    "Expand": expand,
    "Reshape": reshape,
    "Resize": resize,
    "Gather": gather,
}
"""Operators with a float and an int8 form."""


FLOAT: dict[str, Callable[[Kit], Node]] = {
    **BOTH,
    "Div": division,
    "External": external,
    "Elementwise": functions,
    "Loop": loop,
    "Pow": power,
    "Where": where,
    "Scatter": scatter,
    "TopK": top_k,
    "GroupedMatMul": grouped_mat_mul,
    "GroupedMatMul-rows": product_of_quantized_rows,
    **{str(form): unary(form.kind, form.positive, **form.attributes) for form in FUNCTIONS},
    "AntialiasedResize": antialiased_resize,
    "ReduceSum": reduction(ops.ReduceSum),
    "BatchNormalization": batch_normalization,
    "LRN": lrn,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": unary(ops.LogSoftmax),
    "RowMap": rows,
    "Quantize": quantize,
}

INT8: dict[str, Callable[[Kit], Node]] = {
    **BOTH,
    "Rescale": rescale,
    "Table": table,
    "Quantize": requantize,
}
