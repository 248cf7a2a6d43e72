"""ONNX operators to nodes, one module a family; it enters them in ``IMPORTERS``."""

from quantglow.frontend.operators import (
    convolution,
    dynamic,
    einsum,
    elementwise,
    formulas,
    fourier,
    grid_sample,
    indexing,
    integers,
    matmul,
    ml,
    normalization,
    pooling,
    quantized,
    recurrent,
    reductions,
    resize,
    scans,
    shape,
    slicing,
)
