"""Draws of each operator: operands that fit, attributes of every kind."""

from tests.generators.onnx_models.operators.family import FAMILIES, Family

__all__ = [
    "FAMILIES",
    "Family",
    "attention",
    "choices",
    "classical",
    "constants",
    "elementwise",
    "indexing",
    "integers",
    "loops",
    "losses",
    "masks",
    "microsoft",
    "normalization",
    "products",
    "quantized",
    "recurrent",
    "reductions",
    "sampling",
    "shapes",
    "sizes",
    "spectra",
    "windows",
]
