"""The values of a graph's nodes for all calibration samples at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.interpreter.choices import in_branches
from quantglow.interpreter.stacks import Stackable, Stacks
from quantglow.ops import Conv
from quantglow.ops.contraction import Contraction
from quantglow.profiling.data import Feeds
from quantglow.profiling.specials import ABSENT, NONE
from quantglow.quantization.plan.masks import special_values
from quantglow.quantization.shape_variants import VariantEvaluator

TOGETHER_ROWS = 2048
"""Target number of result rows of one matrix product.  Samples with few rows are stacked up to it,
so that work done once for the weights serves them all."""


@dataclass(frozen=True)
class SampleValues:
    """The value of a node for each sample, or the single value that all samples share.

    ``unfinished``: a contraction of which ``sums`` are the sums.  Activation and bounds are applied
    whenever the value is read, so that nothing is stored twice where the sums are wanted, too.
    """

    sums: Stacks
    unfinished: Contraction | None = None

    @property
    def is_shared(self) -> bool:
        """Whether it is one value for all samples."""
        return self.sums.is_shared

    def stacked(self, part: Sequence[int]) -> Array:
        """The values for some samples, stacked along the first axis."""
        found = self.sums.stacked(part)
        return found if self.unfinished is None else self.unfinished.finished(found.copy())

    def of(self, sample: int) -> Array:
        """The value for one sample."""
        return self.stacked([sample])


class SampleEvaluator(VariantEvaluator):
    """Evaluates nodes of a graph for all samples at once; samples run side by side.

    Values of branches that are not taken are finite here: 0 instead of NaN and Inf, except for NaN
    and Inf that the model brings itself.  Nodes need not be those of ``graph``, if they keep the
    names.
    """

    def __init__(self, graph: Graph, samples: Sequence[Feeds]) -> None:
        super().__init__(graph, samples)
        self.untaken = {node.name for node in in_branches(graph)}
        self.special = {node.name: found for node, found in special_values(graph).items()}

    def values(self, node: Node, operands: Sequence[SampleValues]) -> SampleValues:
        """``evaluate`` of an ``Execution``: the values of ``node`` for all samples."""
        return SampleValues(self.compute(node, operands))

    def compute(self, node: Node, operands: Sequence[Stackable]) -> Stacks:
        """The value of ``node`` for each sample, from those of its operands."""
        return super().compute(node, operands).mapped(partial(self.finite, node))

    def together(self, node: Node) -> int:
        """How many samples of a node to stack."""
        found = super().together(node)
        if isinstance(node, Contraction) and stacks(node):
            rows = node.type.size // max(node.type.shape[-1], 1)
            return max(found, TOGETHER_ROWS // max(rows, 1))
        return found

    def finite(self, node: Node, value: Array) -> Array:
        """A value of the node without the NaN and Inf of a branch that is not taken."""
        if node.name not in self.untaken or not node.type.dtype.is_float:
            return value
        specials = self.special.get(node.name, NONE)
        if specials & ABSENT:
            return value
        if specials:
            return np.where(np.isnan(value), np.float32(0), value)
        return np.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)


def stacks(node: Contraction) -> bool:
    """Whether stacked samples give the same results as one by one: all have the same weights, and
    the residual, if there is one, is computed for each.
    """
    residual = node.residual if isinstance(node, Conv) else None
    is_fixed = isinstance(node.w, Constant) and isinstance(node.b, Constant | None)
    return is_fixed and not isinstance(residual, Constant)
