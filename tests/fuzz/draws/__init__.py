"""How each operator is drawn: operands that fit, attributes of every kind."""

from tests.fuzz.draws import (
    attention,
    choices,
    constants,
    elementwise,
    indexing,
    integers,
    losses,
    normalization,
    products,
    quantized,
    recurrent,
    reductions,
    sampling,
    shapes,
    spectra,
    windows,
)
from tests.fuzz.draws.family import FAMILIES, Family

__all__ = [
    "FAMILIES",
    "Family",
    "attention",
    "choices",
    "constants",
    "elementwise",
    "indexing",
    "integers",
    "losses",
    "normalization",
    "products",
    "quantized",
    "recurrent",
    "reductions",
    "sampling",
    "shapes",
    "spectra",
    "windows",
]
