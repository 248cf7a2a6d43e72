"""A run of the float graph on samples that tries candidate ranges at every reader of a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.node import Constant, Node
from quantglow.ops.arithmetic import quant_of
from quantglow.ops.contraction import Contraction
from quantglow.processes.interrupts import check_interrupt
from quantglow.profiling import Histogram
from quantglow.quantization.plan.plan import Plan
from quantglow.quantization.recovery.sample_values import SampleValues
from quantglow.quantization.search.reader_errors import ReaderErrors
from quantglow.types import ElementType

COHERENCE = 4.0
"""Weight of clipping errors.  They have one sign and lie together, at the strongest values: they
add up behind the reader, while rounding errors average out."""

Pair = tuple[str, str]
"""Names of a value and of a reader of it."""


@dataclass(frozen=True)
class Judged:
    """The errors of a reader with candidates of a value, and all that they follow from.

    ``histograms`` of the values that are read, and of the result; those of equal values are the
    same object.  ``weights``: of a product.
    """

    histograms: Sequence[Histogram | None]
    weights: Array | None
    types: Sequence[ElementType]
    errors: Array

    def holds(
        self,
        histograms: Sequence[Histogram | None],
        weights: Array | None,
        types: Sequence[ElementType],
    ) -> bool:
        """Whether the errors are the same with these."""
        pairs = zip(self.histograms, histograms, strict=True)
        if not all(a is b is not None for a, b in pairs) or self.types != types:
            return False
        if weights is None or self.weights is None:
            return weights is self.weights
        return weights is self.weights or np.array_equal(weights, self.weights)


@dataclass
class RangeTrial:
    """A float run that tries all candidates at each reader.  ``errors``: group -> [halves,
    candidates], sums over its readers.  ``judged``: see ``choose_ranges``.
    """

    plan: Plan
    types: list[dict[Node, ElementType]]
    readers: ReaderErrors
    judged: dict[Pair, Judged] = field(default_factory=dict)
    errors: dict[Node, Array] = field(default_factory=dict)

    def best(self) -> dict[Node, int]:
        """The candidate of each group: the best of one half that holds on the other."""
        found = {}
        for root in self.errors:
            one, other = self.weighted(root)
            order = np.argsort(one + other, kind="stable")
            # min-max always holds, also where a logarithm of 0 makes its error no number.
            holds = ~((one > one[0]) | (other > other[0]))
            found[root] = next(int(k) for k in order if holds[k])
        return found

    def weighted(self, root: Node) -> Array:
        """[halves, candidates]: the errors of a group, with clipping weighted by ``COHERENCE``.
        Rounding errors grow with the square of the step; the rest is clipping.
        """
        errors = self.errors[root]
        steps = np.array([quant_of(types[root]).scale for types in self.types])
        rounding = errors[:, :1] * np.square(steps / steps[0])
        return np.asarray(errors + (COHERENCE - 1) * np.maximum(errors - rounding, 0.0))

    def values(self, node: Node, operands: Sequence[SampleValues]) -> SampleValues:
        """The values of the node; its int8 operands are judged by them."""
        check_interrupt()
        results = self.readers.evaluator.values(node, operands)
        if self.plan.is_int8(node):
            given = dict(zip(node.operands, operands, strict=True))
            for operand in given:
                if not isinstance(operand, Constant) and operand in self.plan.groups:
                    self._judge(operand, node, given, results)
        return results

    def _judge(
        self,
        operand: Node,
        reader: Node,
        given: Mapping[Node, SampleValues],
        results: SampleValues,
    ) -> None:
        root = self.plan.groups[operand]
        types = [candidate[root] for candidate in self.types]
        total = self.errors.setdefault(root, np.zeros((2, len(types))))
        pair = operand.name, reader.name
        shown = [node for node in (*given, reader) if not isinstance(node, Constant)]
        histograms = [self.readers.histograms.get(node.name) for node in shown]
        weights = reader.w if isinstance(reader, Contraction) else None
        array = weights.value if isinstance(weights, Constant) else None
        known = self.judged.get(pair)
        if known is None or not known.holds(histograms, array, types):
            errors = self.readers.of(operand, reader, given, types, results)
            known = self.judged[pair] = Judged(histograms, array, types, errors)
        total += known.errors
