"""Quantization: a float graph and its profile to an int8 graph.  README.md has the guide."""

from quantglow.quantization.decisions.decisions import Decisions
from quantglow.quantization.equalize.float_runs import FloatRuns
from quantglow.quantization.qdq import float_notes, fuse_quantized
from quantglow.quantization.qdq.stored_weights import (
    has_quantized_weights_only,
    with_stored_weights,
)
from quantglow.quantization.quantizer import (
    Converted,
    QuantizedGraph,
    quantize,
    quantize_for_all_shapes,
)
from quantglow.quantization.report import NodeReport, QuantizationReport, float_islands
from quantglow.quantization.search.candidate import Candidate
from quantglow.quantization.search.preparation import prepare

__all__ = [
    "Candidate",
    "Converted",
    "Decisions",
    "FloatRuns",
    "NodeReport",
    "QuantizationReport",
    "QuantizedGraph",
    "float_islands",
    "float_notes",
    "fuse_quantized",
    "has_quantized_weights_only",
    "prepare",
    "quantize",
    "quantize_for_all_shapes",
    "with_stored_weights",
]
