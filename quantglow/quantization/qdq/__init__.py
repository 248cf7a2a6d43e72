"""Models that come quantized: ``Quantize(op(Dequantize(x)))`` becomes the int8 form of ``op``.

The user's rounding points stay: every Quantize is still a rounding to its type, no pass moves
arithmetic across one, and no range is chosen anew.  Only the way changes in which the operator
between two of them is computed: exactly in integers, rounding once, instead of in float32.  So an
integer may differ by one step from the float computation where that lies on a tie, to float32
rounding.  A bias without parameters of its own is rounded to steps of the int32 sum, where these
are fine (see ``contraction.FINE``); all other weights and biases are exact, or stay float.
"""

from __future__ import annotations

from quantglow.graph.graph import Graph
from quantglow.graph.rewrite import Pass, run_passes
from quantglow.passes import RECOGNISERS, optimize
from quantglow.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from quantglow.passes.eliminate_identity import eliminate_identity
from quantglow.passes.fuse_activation import fuse_activation, fuse_float_activation
from quantglow.passes.hoist_transpose import hoist_transpose
from quantglow.passes.merge_reshapes import merge_reshapes
from quantglow.passes.merge_transposes import merge_transposes
from quantglow.passes.repeat import repeat
from quantglow.passes.sink_transpose import sink_transpose
from quantglow.passes.sink_transpose_below_reshape import sink_transpose_below_reshape
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
        merge_transposes,
        merge_reshapes,
        sink_transpose,
        sink_transpose_below_reshape,
        hoist_transpose,
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
