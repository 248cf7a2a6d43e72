"""Lowering: operators become a small set of primitives, which is all that a backend implements.

After ``lower`` every node is an Input, a Constant, one of ``COMPUTE_PRIMITIVES`` in the form its
backend rule expects, one of ``VIEW_PRIMITIVES``, or a Loop whose body is lowered.
"""

from __future__ import annotations

from quantglow.errors import BackendError
from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.graph.rewrite import Pass, RewritePass, Uses, run_passes
from quantglow.lowering import (
    antialiased_resize,
    contraction,
    elementwise,
    indexing,
    reduction,
    transposed_convolution,
)
from quantglow.lowering.bias_to_uint8 import bias_to_uint8
from quantglow.lowering.cut_padding_taps import cut_padding_taps
from quantglow.lowering.cut_unread_columns import cut_unread_columns
from quantglow.lowering.fold_symmetric_filters import fold_symmetric_filters
from quantglow.lowering.fold_symmetric_products import fold_symmetric_products
from quantglow.lowering.fuse import fuse_elementwise
from quantglow.lowering.minimal_filtering import minimal_filtering
from quantglow.lowering.names import unique_names
from quantglow.lowering.raise_transpose import raise_transpose
from quantglow.lowering.rules import (
    COMPUTE_PRIMITIVES,
    CONTROL_PRIMITIVES,
    FALLBACK,
    LEAVES,
    VIEW_PRIMITIVES,
    lowering_rules,
    rule_of,
)
from quantglow.lowering.sink_reshape_into_elementwise import sink_reshape_into_elementwise
from quantglow.lowering.split_by_padding import split_by_padding
from quantglow.passes.fuse_activation import fuse_float_activation

__all__ = [
    "COMPUTE_PRIMITIVES",
    "CONTROL_PRIMITIVES",
    "FALLBACK",
    "LOWERING_PASSES",
    "VIEW_PRIMITIVES",
    "antialiased_resize",
    "bias_to_uint8",
    "check_lowered",
    "contraction",
    "elementwise",
    "indexing",
    "lower",
    "lowering_rules",
    "reduction",
    "transposed_convolution",
]


def lower(graph: Graph, *, unsigned: bool = True, small: bool = False) -> Graph:
    """The graph in primitives only.

    With ``unsigned``, int8 activations are stored as uint8; ``small``: no weights are stored twice.
    """
    choices = (bias_to_uint8, unsigned), (split_by_padding, not small)
    left_out = [step for step, is_wanted in choices if not is_wanted]
    lowered = run_passes(graph, [step for step in LOWERING_PASSES if step not in left_out])
    check_lowered(lowered)
    return lowered.map_bodies(lambda body: lower(body, unsigned=unsigned, small=small))


def lower_operators(graph: Graph) -> Graph:
    """Apply the lowering rules until every node is primitive."""
    return unique_names(RewritePass("lower-operators", _apply_rule)(graph))


def _apply_rule(node: Node, uses: Uses) -> Node | None:
    rule = rule_of(type(node))
    return None if rule is None else rule(node)


LOWERING_PASSES: tuple[Pass, ...] = (
    fuse_float_activation,
    cut_padding_taps,
    split_by_padding,
    bias_to_uint8,
    cut_unread_columns,
    fold_symmetric_filters,
    fold_symmetric_products,
    minimal_filtering,
    lower_operators,
    raise_transpose,
    fuse_elementwise,
    sink_reshape_into_elementwise,
)
"""Graph to primitives, whose int8 activations are stored as uint8 where ``bias_to_uint8`` runs."""


def check_lowered(graph: Graph) -> None:
    """Raise ``BackendError`` if a node is not primitive."""
    allowed = (*LEAVES, *FALLBACK, *COMPUTE_PRIMITIVES, *VIEW_PRIMITIVES, *CONTROL_PRIMITIVES)
    left = [node for node in graph.nodes if not isinstance(node, allowed)]
    if left:
        raise BackendError(f"no lowering rule for {', '.join(map(repr, left))}")
