"""The optimizer of float graphs: small passes, and the order they run in.  README.md has the guide.

Unused nodes need no pass: a graph is what its outputs reach.
"""

from __future__ import annotations

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.origins import with_aliases
from quantglow.transforms.float.arithmetic import (
    factor_gate,
    merge_arithmetic,
    merge_clips,
    simplify_arithmetic,
)
from quantglow.transforms.float.canonicalization import (
    canonicalize_pool,
    gemm_to_conv,
    group_heads,
    matmul_to_gemm,
)
from quantglow.transforms.float.constant_folding import fold_constants, fold_parts_of_constants
from quantglow.transforms.float.elimination import (
    drop_expand,
    eliminate_common_subexpressions,
    eliminate_identity,
)
from quantglow.transforms.float.fusion import fuse_activation, fuse_residual
from quantglow.transforms.float.recognition import (
    recognise_gelu,
    recognise_hard_sigmoid,
    recognise_hard_swish,
    recognise_layer_normalization,
    recognise_swish,
)
from quantglow.transforms.float.shape import (
    merge_reshapes,
    raise_elements,
    simplify_concat,
    simplify_slice,
    sink_reshape,
)
from quantglow.transforms.float.transposes import (
    fold_transpose_into_gemm,
    hoist_transpose,
    merge_transposes,
    sink_transpose,
    sink_transpose_below_reshape,
    transpose_to_reshape,
)
from quantglow.transforms.float.weight_folding import (
    decompose_batch_norm,
    fold_arithmetic,
    fold_arithmetic_into_consumer,
    fold_batch_norm,
    fold_pad,
)
from quantglow.transforms.pass_manager import record
from quantglow.transforms.rewrite import OptimizeBodies, Pass, repeat, run_passes

RECOGNIZERS = (
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
        *RECOGNIZERS,
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
    original = graph
    with record():
        for _ in range(MOST_ROUNDS):
            before = len(graph.nodes)
            graph = run_passes(graph, FLOAT_PASSES)
            if len(graph.nodes) >= before:
                break
        return with_aliases(run_passes(graph, [OptimizeBodies(optimize)]), original)


MOST_ROUNDS = 8
"""Maximum number of rounds of all passes.  Networks need two: the second has nothing left to do."""


__all__ = ["FLOAT_PASSES", "optimize"]
