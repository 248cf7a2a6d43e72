"""Quantization: a float graph and its profile to an int8 graph.  See ``plan`` for the decisions."""

from quantglow.quantization.convert import quantize, quantize_with_report
from quantglow.quantization.decisions import Decisions, Quantized, quantize_for_all_shapes
from quantglow.quantization.qdq import fuse_quantized
from quantglow.quantization.report import NodeReport, QuantizationReport, float_islands

__all__ = [
    "Decisions",
    "NodeReport",
    "QuantizationReport",
    "Quantized",
    "float_islands",
    "fuse_quantized",
    "quantize",
    "quantize_for_all_shapes",
    "quantize_with_report",
]
