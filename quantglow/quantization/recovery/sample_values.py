"""The values of a graph's nodes for all calibration samples at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input, Node
from quantglow.interpreter.choices import in_branches
from quantglow.interpreter.stacks import Layout, Stacks, joined, together_of
from quantglow.ops import Conv
from quantglow.ops.contraction import Contraction
from quantglow.processes.workers import each
from quantglow.profiling.data import Feeds
from quantglow.profiling.specials import ABSENT, NONE
from quantglow.quantization.plan.masks import special_values
from quantglow.quantization.shape_variants import counterpart, graph_for
from quantglow.types import Array

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
        return self.sums.layout is None

    def stacked(self, part: Sequence[int]) -> Array:
        """The values for some samples, stacked along the first axis."""
        found = self.sums.stacked(part)
        return found if self.unfinished is None else self.unfinished.finished(found.copy())

    def of(self, sample: int) -> Array:
        """The value for one sample."""
        return self.stacked([sample])


class SampleEvaluator:
    """Evaluates nodes of a graph for all samples at once; samples run side by side.

    Values of branches that are not taken are finite here: 0 instead of NaN and Inf, except for NaN
    and Inf that the model brings itself.  Nodes need not be those of ``graph``, if they keep the
    names.
    """

    def __init__(self, graph: Graph, samples: Sequence[Feeds]) -> None:
        self.graph, self.samples = graph, samples
        self.untaken = {node.name for node in in_branches(graph)}
        self.special = {node.name: found for node, found in special_values(graph).items()}
        self.layouts: dict[int, Layout] = {}

    def values(self, node: Node, operands: Sequence[SampleValues]) -> SampleValues:
        """``evaluate`` of an ``Execution``: the values of ``node`` for all samples."""
        if isinstance(node, Constant):
            return SampleValues(Stacks.shared(node.value))
        return SampleValues(self.compute(node, operands))

    def compute(self, node: Node, operands: Sequence[SampleValues]) -> Stacks:
        """The value of ``node`` for each sample, from those of its operands."""
        if isinstance(node, Input):
            return Stacks([np.asarray(f[node.name]) for f in self.samples], self.layout(1))
        together = together_of(node)
        if isinstance(node, Contraction) and stacks(node):
            rows = node.type.size // max(node.type.shape[-1], 1)
            together = max(together, TOGETHER_ROWS // max(rows, 1))
        layout = self.layout(together)
        found = each(lambda part: self._computed(node, operands, part), layout.parts)
        return Stacks(found, layout)

    def layout(self, together: int) -> Layout:
        """All samples in parts of equal shapes, of ``together`` at most."""
        if together not in self.layouts:
            count = len(self.samples)
            parts = -(-count // together)
            if parts > 1:  # An even number keeps two cores equally busy.
                together = -(-count // (parts + parts % 2))
            self.layouts[together] = Layout(self.parts(range(count), together))
        return self.layouts[together]

    def parts(self, samples: range, together: int) -> list[range]:
        """The samples in parts of equal shapes, of ``together`` at most, in their order."""
        found: list[range] = []
        start = 0
        for _, alike in groupby(samples, lambda s: id(graph_for(self.samples[s], self.graph))):
            end = start + len(list(alike))
            found += [samples[i : min(i + together, end)] for i in range(start, end, together)]
            start = end
        return found

    def _computed(self, node: Node, operands: Sequence[SampleValues], part: range) -> Array:
        """The values for some samples; those of several are stacked along the first axis."""
        own: Node | None = self.counterpart(node, part[0])
        given = self.given(own, operands, part)
        if len(part) > 1 and not isinstance(node, Contraction):
            own = joined(own, len(part))
        with np.errstate(all="ignore"):
            return self.finite(node, own.evaluate(*given))

    def given(self, own: Node, operands: Sequence[SampleValues], part: range) -> Iterator[Array]:
        """The operands of a ``counterpart`` for some samples.

        Its Constants are its own: their shapes may differ, and an improved layer may have a bias
        that the old one had not.
        """
        computed = (values for values in operands if not values.is_shared)
        for operand in own.operands:
            if isinstance(operand, Constant):
                yield operand.value
            else:
                yield next(computed).stacked(part)

    def counterpart(self, node: Node, sample: int) -> Node:
        """The node at the shapes of a sample."""
        return counterpart(node, self.samples[sample])

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
