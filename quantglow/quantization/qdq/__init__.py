"""Models that come quantized: ``Quantize(op(Dequantize(x)))`` becomes the int8 form of ``op``."""

from __future__ import annotations

from quantglow.graph.graph import Graph
from quantglow.graph.rewrite import Pass, run_passes
from quantglow.passes import MOVES, RECOGNISERS, optimize
from quantglow.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from quantglow.passes.eliminate_identity import eliminate_identity
from quantglow.passes.fuse_activation import fuse_activation, fuse_float_activation
from quantglow.passes.merge_reshapes import merge_reshapes
from quantglow.passes.repeat import repeat
from quantglow.passes.transpose_to_reshape import transpose_to_reshape
from quantglow.quantization.qdq.affine import fold_scales
from quantglow.quantization.qdq.contraction import (
    contract_integers,
    fuse_activated_sum,
    fuse_contraction,
)
from quantglow.quantization.qdq.float_notes import float_notes
from quantglow.quantization.qdq.movement import (
    lower_dequantize,
    merge_roundings,
    raise_quantize,
    real_constants,
    real_operands,
)
from quantglow.quantization.qdq.operators import fuse_operator

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
        *RECOGNISERS,
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
