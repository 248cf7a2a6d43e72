"""Compute at compile time what depends on Constants only."""

from __future__ import annotations

import numpy as np

from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, declined, rewrite_pass
from quantglow.ops.external import External
from quantglow.ops.indexing import Gather
from quantglow.ops.loop import Loop
from quantglow.ops.quantization import Dequantize
from quantglow.ops.shape import Expand
from quantglow.ops.work import work_of
from quantglow.passes.layout import derived

GROWTH_NBYTES = 1 << 20
"""A folded value may be larger than its operands only up to this size (Expand, Pad, Resize)."""


MOST_WORK = 2 * 10**10
"""A value that takes longer to compute stays computed: about a second, see ``work_of``."""


@rewrite_pass("fold-constants")
def fold_constants(node: Node, uses: Uses) -> Node | None:
    """f(Constant, …) -> Constant, unless that would make the program much larger"""
    operands = node.operands
    if isinstance(node, External | Loop):  # it may draw random numbers, or never end
        return None
    if not operands or not all(isinstance(o, Constant) for o in operands):
        return None
    if isinstance(node, Dequantize):
        return declined(node, "it has the integers of the model")
    if node.has_free_sizes:
        return declined(node, "its value depends on free dimensions")
    if grows(node):
        if (rows := gathered_once(node, uses)) is not None:
            return rows
        return declined(node, f"its value has {node.type.nbytes} bytes, more than its operands")
    if work_of(node) > MOST_WORK:
        return declined(node, "its value takes too much work")
    values = [o.value for o in operands if isinstance(o, Constant)]
    value = np.array(node.evaluate(*values), order="C")
    element = node.type.element if node.type.quant else None
    return Constant(name=node.name, value=value, element=element)


def gathered_once(node: Node, uses: Uses) -> Node | None:
    """Gather(Constant, indices that repeat along axes) -> Expand(Gather(Constant, indices))"""
    if not (isinstance(node, Gather) and isinstance(node.indices, Constant)):
        return None
    indices = node.indices.value
    for axis, size in enumerate(indices.shape):
        first = indices.take([0], axis) if size > 1 else indices
        indices = first if (indices == first).all() else indices
    if indices.shape == node.indices.value.shape:
        return None
    once = Constant(name=uses.fresh(derived(node.name, ":once")), value=indices)
    rows = Gather(
        name=uses.fresh(derived(node.name, ":rows")), x=node.x, indices=once, axis=node.axis
    )
    return Expand(name=node.name, x=rows, shape=node.type.shape)


def grows(node: Node) -> bool:
    """Whether the value is much larger than the operands."""
    return node.type.nbytes > max(GROWTH_NBYTES, sum(o.type.nbytes for o in node.operands))
