"""ONNX operators to nodes, one module a family; it enters them in ``IMPORTERS``."""

from quantglow.importer.onnx.operators import contrib, groupwise, ml, rnn
from quantglow.importer.onnx.operators.math import (
    elementwise,
    fourier,
    integers,
    matmul,
    reductions,
)
from quantglow.importer.onnx.operators.nn import (
    attention,
    convolution,
    fused,
    normalization,
    pooling,
)
from quantglow.importer.onnx.operators.quantization import integer_products, linear
from quantglow.importer.onnx.operators.tensor import indexing, resampling, shape, slicing
