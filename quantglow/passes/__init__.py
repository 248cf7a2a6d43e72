"""The graph optimizer: small passes, each a file of its name, and the order they run in.

Unused nodes need no pass: a graph is what its outputs reach.
"""

from __future__ import annotations

from quantglow.graph.aliases import with_aliases
from quantglow.graph.graph import Graph
from quantglow.graph.rewrite import Pass, run_passes
from quantglow.pass_manager import recorded
from quantglow.passes.canonicalize_pool import canonicalize_pool
from quantglow.passes.decompose_batch_norm import decompose_batch_norm
from quantglow.passes.drop_expand import drop_expand
from quantglow.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from quantglow.passes.eliminate_identity import eliminate_identity
from quantglow.passes.factor_gate import factor_gate
from quantglow.passes.fold_arithmetic import fold_arithmetic
from quantglow.passes.fold_arithmetic_into_consumer import fold_arithmetic_into_consumer
from quantglow.passes.fold_batch_norm import fold_batch_norm
from quantglow.passes.fold_constants import fold_constants
from quantglow.passes.fold_pad import fold_pad
from quantglow.passes.fold_parts_of_constants import fold_parts_of_constants
from quantglow.passes.fold_transpose_into_gemm import fold_transpose_into_gemm
from quantglow.passes.fuse_activation import fuse_activation
from quantglow.passes.fuse_residual import fuse_residual
from quantglow.passes.gemm_to_conv import gemm_to_conv
from quantglow.passes.group_heads import group_heads
from quantglow.passes.hoist_transpose import hoist_transpose
from quantglow.passes.matmul_to_gemm import matmul_to_gemm
from quantglow.passes.merge_arithmetic import merge_arithmetic
from quantglow.passes.merge_clips import merge_clips
from quantglow.passes.merge_reshapes import merge_reshapes
from quantglow.passes.merge_transposes import merge_transposes
from quantglow.passes.optimize_bodies import OptimizeBodies
from quantglow.passes.raise_elements import raise_elements
from quantglow.passes.recognise_gelu import recognise_gelu
from quantglow.passes.recognise_hard_sigmoid import recognise_hard_sigmoid
from quantglow.passes.recognise_hard_swish import recognise_hard_swish
from quantglow.passes.recognise_layer_normalization import recognise_layer_normalization
from quantglow.passes.recognise_swish import recognise_swish
from quantglow.passes.repeat import repeat
from quantglow.passes.simplify_arithmetic import simplify_arithmetic
from quantglow.passes.simplify_concat import simplify_concat
from quantglow.passes.simplify_slice import simplify_slice
from quantglow.passes.sink_reshape import sink_reshape
from quantglow.passes.sink_transpose import sink_transpose
from quantglow.passes.sink_transpose_below_reshape import sink_transpose_below_reshape
from quantglow.passes.transpose_to_reshape import transpose_to_reshape

RECOGNISERS = (
    simplify_arithmetic,
    merge_clips,
    recognise_hard_sigmoid,
    recognise_hard_swish,
    recognise_swish,
    recognise_gelu,
    recognise_layer_normalization,
)
"""Operators that exporters write in parts become one again."""

MOVES: tuple[Pass, ...] = (
    merge_transposes,
    merge_reshapes,
    sink_transpose,
    sink_transpose_below_reshape,
    hoist_transpose,
)
"""Passes that bring Transposes and Reshapes together."""

FLOAT_PASSES: tuple[Pass, ...] = (
    eliminate_common_subexpressions,
    repeat(
        "move-transposes",
        eliminate_identity,
        fold_constants,
        fold_parts_of_constants,
        drop_expand,
        matmul_to_gemm,
        *MOVES,
        sink_reshape,
        fold_transpose_into_gemm,
        eliminate_common_subexpressions,
    ),
    repeat(
        "clean-up-shapes",
        eliminate_identity,
        fold_constants,
        transpose_to_reshape,
        canonicalize_pool,
        merge_reshapes,
        sink_reshape,
        gemm_to_conv,
        simplify_concat,
        simplify_slice,
        group_heads,
        eliminate_common_subexpressions,
    ),
    repeat(
        "recognise-activations",
        *RECOGNISERS,
        factor_gate,
    ),
    repeat(
        "fold-into-weights", simplify_arithmetic, raise_elements, fold_batch_norm, fold_arithmetic
    ),
    decompose_batch_norm,
    repeat(
        "clean-up-arithmetic",
        eliminate_identity,
        merge_reshapes,
        sink_reshape,
        simplify_arithmetic,
        merge_arithmetic,
        fold_arithmetic,
        fold_arithmetic_into_consumer,
        fold_pad,
        merge_clips,
        fold_constants,
        fold_parts_of_constants,
        drop_expand,
    ),
    fuse_activation,
    eliminate_common_subexpressions,
    fuse_residual,
)
"""Float graph to float graph.  Activations fuse after BatchNormalization has been folded, else
the folding would change what the activation sees."""


def optimize(graph: Graph) -> Graph:
    """The same function of the inputs with fewer and larger operators, in NHWC throughout.

    Outputs keep their names and layouts; a Transpose may remain behind an image input and before
    an image output.  Names of values that are gone become ``aliases``.  The passes run again while
    they still shrink the graph: what a late one takes apart an early one may yet fold.
    """
    given = graph
    with recorded():
        for _ in range(MOST_ROUNDS):
            before = len(graph.nodes)
            graph = run_passes(graph, FLOAT_PASSES)
            if len(graph.nodes) >= before:
                break
        return with_aliases(run_passes(graph, [OptimizeBodies(optimize)]), given)


MOST_ROUNDS = 8
"""Maximum number of rounds of all passes.  Networks need two: the second has nothing left to do."""


__all__ = ["FLOAT_PASSES", "optimize"]
