"""Models that come quantized: ``Quantize(op(Dequantize(x)))`` becomes the int8 form of ``op``."""

from __future__ import annotations

from quantglow.ir.graph.graph import Graph
from quantglow.quantization.qdq.contraction import (
    contract_integers,
    float_notes,
    fold_scales,
    fuse_activated_sum,
    fuse_contraction,
)
from quantglow.quantization.qdq.operators import (
    fuse_operator,
    lower_dequantize,
    merge_roundings,
    raise_quantize,
    real_constants,
    real_operands,
)
from quantglow.transforms.float import MOVES, RECOGNIZERS, optimize
from quantglow.transforms.float.elimination import (
    eliminate_common_subexpressions,
    eliminate_identity,
)
from quantglow.transforms.float.fusion import fuse_activation, fuse_float_activation
from quantglow.transforms.float.shape import merge_reshapes
from quantglow.transforms.float.transposes import transpose_to_reshape
from quantglow.transforms.rewrite import Pass, repeat, run_passes

__all__ = ["QDQ_PASSES", "float_notes", "fuse_quantized"]

QDQ_PASSES: tuple[Pass, ...] = (
    eliminate_common_subexpressions,
    repeat(
        "move-transposes",
        eliminate_identity,
        real_operands,
        *MOVES,
        eliminate_common_subexpressions,
    ),
    repeat(
        "recognise-activations",
        eliminate_identity,
        transpose_to_reshape,
        merge_reshapes,
        *RECOGNIZERS,
    ),
    repeat("move-roundings", merge_roundings, raise_quantize, lower_dequantize),
    fold_scales,
    fuse_activated_sum,
    fuse_float_activation,
    fuse_activation,
    repeat(
        "fuse-quantized",
        merge_roundings,
        raise_quantize,
        lower_dequantize,
        fuse_contraction,
        fuse_operator,
        eliminate_common_subexpressions,
    ),
    contract_integers,
    real_constants,
)
"""A graph with Quantize and Dequantize between float operators to one of int8 operators."""


def fuse_quantized(graph: Graph) -> Graph:
    """The int8 graph of an imported graph with Quantize and Dequantize; operators left in float are
    optimized as always.
    """
    return optimize(run_passes(graph, QDQ_PASSES))
