"""Lowering: operators become a small set of primitives, which is all that a backend implements.

After ``lower`` every node is an Input, a Constant, one of ``COMPUTE_PRIMITIVES`` in the form its
backend rule expects, one of ``VIEW_PRIMITIVES``, or a Loop whose body is lowered.
"""

from __future__ import annotations

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.support.errors import BackendError
from quantglow.transforms.float.fusion import fuse_float_activation
from quantglow.transforms.lowering import axes, contraction, elementwise
from quantglow.transforms.lowering.bias_to_uint8 import bias_to_uint8
from quantglow.transforms.lowering.elementwise import fuse_elementwise
from quantglow.transforms.lowering.minimal_filtering import minimal_filtering
from quantglow.transforms.lowering.rules import (
    COMPUTE_PRIMITIVES,
    CONTROL_PRIMITIVES,
    FALLBACK,
    LEAVES,
    VIEW_PRIMITIVES,
    find_rule,
    lowering_rules,
    unique_names,
)
from quantglow.transforms.lowering.symmetry import fold_symmetric_filters, fold_symmetric_products
from quantglow.transforms.lowering.trimming import (
    cut_padding_taps,
    cut_unread_columns,
    split_by_padding,
)
from quantglow.transforms.lowering.views import raise_transpose, sink_reshape_into_elementwise
from quantglow.transforms.rewrite import Pass, RewritePass, Uses, run_passes

__all__ = [
    "COMPUTE_PRIMITIVES",
    "CONTROL_PRIMITIVES",
    "FALLBACK",
    "LOWERING_PASSES",
    "VIEW_PRIMITIVES",
    "axes",
    "bias_to_uint8",
    "check_lowered",
    "contraction",
    "elementwise",
    "lower",
    "lowering_rules",
    "resize",
]


def lower(graph: Graph, *, unsigned: bool = True, small: bool = False) -> Graph:
    """The graph in primitives only.

    With ``unsigned``, int8 activations are stored as uint8; ``small``: no weights are stored twice.
    """
    choices = (bias_to_uint8, unsigned), (split_by_padding, not small)
    left_out = [step for step, is_enabled in choices if not is_enabled]
    lowered = run_passes(graph, [step for step in LOWERING_PASSES if step not in left_out])
    check_lowered(lowered)
    return lowered.map_bodies(lambda body: lower(body, unsigned=unsigned, small=small))


def lower_operators(graph: Graph) -> Graph:
    """Apply the lowering rules until every node is primitive."""
    return unique_names(RewritePass("lower-operators", _apply_rule)(graph))


def _apply_rule(node: Node, uses: Uses) -> Node | None:
    rule = find_rule(type(node))
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
