"""Weights that a model has as integers: Dequantize of a Constant, moved or not."""

from __future__ import annotations

from quantglow.graph.node import Constant, Node
from quantglow.ops.quantization import Dequantize
from quantglow.ops.shape import Reshape, Transpose


def has_stored_integers(node: Node) -> bool:
    """Whether a value is real numbers that the model has as integers."""
    while isinstance(node, Reshape | Transpose):
        node = node.x
    return isinstance(node, Dequantize) and isinstance(node.x, Constant)
