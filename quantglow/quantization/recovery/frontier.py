"""The values of a graph for all samples at once, node by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input, Node
from quantglow.interpreter.choices import in_branches
from quantglow.ops import Conv
from quantglow.ops.contraction import Contraction
from quantglow.profiling.data import Feeds
from quantglow.profiling.specials import ABSENT, NONE
from quantglow.quantization.plan.masks import special_values
from quantglow.quantization.shape_variants import counterpart, graph_for
from quantglow.types import Array
from quantglow.workers import each

TOGETHER_ROWS = 2048
"""Rows of results that a matrix product computes at once, of several samples where each has few:
what is done once for the weights then serves them all."""


@dataclass
class Frontier:
    """Values by name, one for each sample, as long as some reader waits for them; those of ``ends``
    for good.

    Values of branches that are not taken are finite here: 0 instead of NaN and Inf, except for NaN
    and Inf that the model brings itself.  Nodes may be others than those of ``graph``, if they keep
    the names.

    ``unfinished`` are contractions whose sums are kept: activation and bounds come whenever the
    value is read, so that it need not be kept twice where the sums are wanted, too.
    """

    graph: Graph
    samples: list[Feeds]
    ends: Sequence[str] = ()
    values: dict[str, list[Array]] = field(default_factory=dict)
    waiting: Counter[str] = field(default_factory=Counter)
    unfinished: dict[str, Contraction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.in_vain = {node.name for node in in_branches(self.graph)}
        special = special_values(self.graph)
        self.special = {node.name: specials for node, specials in special.items()}
        self.waiting.update(self.ends)
        for node in self.graph.nodes:
            self.waiting.update(operand.name for operand in node.operands)

    def value(self, node: Node, sample: int) -> Array:
        """The value of a node that was kept."""
        return self.stacked(node, [sample])

    def compute(self, node: Node) -> list[Array]:
        """The value of ``node`` for each sample, from the kept values of its operands."""
        if isinstance(node, Input):
            return [np.asarray(feeds[node.name]) for feeds in self.samples]
        together = 1
        if isinstance(node, Contraction) and stacks(node):
            rows = node.type.size // max(node.type.shape[-1], 1)
            together = max(1, TOGETHER_ROWS // max(rows, 1))
        parts = self.parts(range(len(self.samples)), together)
        return list(chain.from_iterable(each(lambda part: self._computed(node, part), parts)))

    def parts(self, samples: Sequence[int], together: int) -> list[Sequence[int]]:
        """The samples in parts of equal shapes, of ``together`` at most, in their order."""
        found: list[Sequence[int]] = []
        start = 0
        for _, alike in groupby(samples, lambda s: id(graph_for(self.samples[s], self.graph))):
            end = start + len(list(alike))
            found += [samples[i : min(i + together, end)] for i in range(start, end, together)]
            start = end
        return found

    def _computed(self, node: Node, part: Sequence[int]) -> list[Array]:
        """The values for some samples; those of several are stacked along the first axis."""
        own = self.counterpart(node, part[0])
        operands = (self.stacked(operand, part) for operand in own.operands)
        with np.errstate(all="ignore"):
            result = self.finite(node, own.evaluate(*operands))
        return [result] if len(part) == 1 else np.split(result, len(part))

    def counterpart(self, node: Node, sample: int) -> Node:
        """The node at the shapes of a sample."""
        return counterpart(node, self.samples[sample])

    def finite(self, node: Node, value: Array) -> Array:
        """A value of the node without the NaN and Inf of a branch that is not taken."""
        if node.name not in self.in_vain or not node.type.dtype.is_float:
            return value
        specials = self.special.get(node.name, NONE)
        if specials & ABSENT:
            return value
        if specials:
            return np.where(np.isnan(value), np.float32(0), value)
        return np.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)

    def stacked(self, node: Node, part: Sequence[int]) -> Array:
        """The kept values for some samples in one array, or the only one; a Constant as it is."""
        if isinstance(node, Constant):
            return node.value
        values = [self.values[node.name][sample] for sample in part]
        found = values[0] if len(values) == 1 else np.concatenate(values)
        contraction = self.unfinished.get(node.name)
        return found if contraction is None else contraction.finished(found.copy())

    def keep(self, node: Node, values: list[Array]) -> None:
        """Store the values of a node, and free those it was the last to read."""
        if self.waiting[node.name]:
            self.values[node.name] = values
        for operand in node.operands:
            self.waiting[operand.name] -= 1
            if not self.waiting[operand.name]:
                self.values.pop(operand.name, None)


def stacks(node: Contraction) -> bool:
    """Whether it computes several samples at once as it does one: with the same weights for all,
    and a residual, if any, of each.
    """
    residual = node.residual if isinstance(node, Conv) else None
    is_fixed = isinstance(node.w, Constant) and isinstance(node.b, Constant | None)
    return is_fixed and not isinstance(residual, Constant)


def peak_nbytes(graph: Graph) -> int:
    """Bytes of all values of one sample that are alive together, at most."""
    waiting = Counter(graph.use_counts)
    live = peak = 0
    for node in graph.nodes:
        if isinstance(node, Constant):
            continue
        live += node.type.nbytes
        peak = max(peak, live)
        for operand in node.operands:
            waiting[operand] -= 1
            if not waiting[operand] and not isinstance(operand, Constant):
                live -= operand.type.nbytes
    return peak
